// Load on a Kubernetes API server over TLS, one measurement a run, the result as one line of JSON.
//
// The same client for every server that is compared: HTTP/2 where the server speaks it (as client-go does), a fixed number of
// workers, each request read to its end. Whatever is not a 2xx answer is an error and ends the run.
package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
	"time"
)

type result struct {
	Done     int     `json:"done"`
	Seconds  float64 `json:"seconds"`
	Rate     float64 `json:"rate"`
	P50      float64 `json:"p50"`
	P99      float64 `json:"p99"`
	Bytes    int64   `json:"bytes"`
	Protocol string  `json:"protocol"`
}

var (
	server    = flag.String("server", "", "https://host:port")
	caFile    = flag.String("ca", "", "certificate authority")
	tokenFile = flag.String("token-file", "", "file with the bearer token")
	mode      = flag.String("mode", "", "create | status | get | list | fanout")
	namespace = flag.String("namespace", "bench", "of the pods")
	bodyFile  = flag.String("body", "", "the pod to create; NAME in it is replaced")
	prefix    = flag.String("prefix", "p", "of the pods' names")
	first     = flag.Int("first", 0, "number of the first pod")
	existing  = flag.Int("pods", 1, "how many there are from the first; requests go round them")
	count     = flag.Int("count", 100, "requests; with fanout: changes")
	workers   = flag.Int("workers", 8, "side by side; with fanout: watchers")
	limit     = flag.Int("limit", 500, "of a list")
	deadline  = flag.Duration("deadline", 60*time.Second, "for the whole run; what is done by then counts")
)

func main() {
	flag.Parse()
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "loadgen:", err)
		os.Exit(1)
	}
}

type client struct {
	http     *http.Client
	token    string
	protocol atomic.Value
	bytes    atomic.Int64
}

func newClient() (*client, error) {
	pem, err := os.ReadFile(*caFile)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("no certificate in %s", *caFile)
	}
	token, err := os.ReadFile(*tokenFile)
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{
		TLSClientConfig:     &tls.Config{RootCAs: roots},
		ForceAttemptHTTP2:   true,
		MaxIdleConnsPerHost: 256,
		DisableCompression:  true,
	}
	return &client{http: &http.Client{Transport: transport}, token: string(bytes.TrimSpace(token))}, nil
}

func (c *client) open(ctx context.Context, method, path, contentType string, body []byte) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, method, *server+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+c.token)
	request.Header.Set("Accept", "application/json")
	if contentType != "" {
		request.Header.Set("Content-Type", contentType)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, err
	}
	c.protocol.Store(response.Proto)
	if response.StatusCode/100 != 2 {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 400))
		response.Body.Close()
		return nil, fmt.Errorf("%s %s: %d %s", method, path, response.StatusCode, text)
	}
	return response, nil
}

func (c *client) call(ctx context.Context, method, path, contentType string, body []byte) error {
	response, err := c.open(ctx, method, path, contentType, body)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	read, err := io.Copy(io.Discard, response.Body)
	c.bytes.Add(read)
	return err
}

func pods() string              { return "/api/v1/namespaces/" + *namespace + "/pods" }
func podName(number int) string { return fmt.Sprintf("%s-%06d", *prefix, number) }
func statusBody(step int) []byte {
	return []byte(fmt.Sprintf(`{"status":{"message":"step %d"}}`, step))
}

const mergePatch = "application/merge-patch+json"

func run() error {
	c, err := newClient()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), *deadline+30*time.Second)
	defer cancel()
	if *mode == "fanout" {
		return fanout(ctx, c)
	}
	var pod []byte
	if *mode == "create" {
		if pod, err = os.ReadFile(*bodyFile); err != nil {
			return err
		}
	}
	request := map[string]func(int) error{
		"create": func(n int) error {
			body := bytes.Replace(pod, []byte("NAME"), []byte(podName(*first+n)), 1)
			return c.call(ctx, "POST", pods(), "application/json", body)
		},
		"status": func(n int) error {
			return c.call(ctx, "PATCH", pods()+"/"+podName(*first+n%*existing)+"/status", mergePatch, statusBody(n))
		},
		"get":  func(n int) error { return c.call(ctx, "GET", pods()+"/"+podName(*first+n%*existing), "", nil) },
		"list": func(n int) error { return c.call(ctx, "GET", fmt.Sprintf("%s?limit=%d", pods(), *limit), "", nil) },
	}[*mode]
	if request == nil {
		return fmt.Errorf("unknown mode %q", *mode)
	}
	return spread(c, request)
}

// spread hands the requests to the workers until all are done or the deadline has passed.
func spread(c *client, request func(int) error) error {
	var next atomic.Int64
	var group sync.WaitGroup
	var failure atomic.Value
	taken := make([][]float64, *workers)
	begun := time.Now()
	for worker := range *workers {
		group.Go(func() {
			for failure.Load() == nil && time.Since(begun) < *deadline {
				number := int(next.Add(1)) - 1
				if number >= *count {
					return
				}
				at := time.Now()
				if err := request(number); err != nil {
					failure.CompareAndSwap(nil, err)
					return
				}
				taken[worker] = append(taken[worker], time.Since(at).Seconds())
			}
		})
	}
	group.Wait()
	if err, ok := failure.Load().(error); ok {
		return err
	}
	var all []float64
	for _, each := range taken {
		all = append(all, each...)
	}
	return report(c, all, time.Since(begun).Seconds(), len(all))
}

// fanout lets every worker watch, changes one pod again and again, and counts until everybody has seen every change. The times
// it reports are those from asking for a change until one watcher has it.
func fanout(ctx context.Context, c *client) error {
	var seen atomic.Int64
	var group sync.WaitGroup
	var failure atomic.Value
	opened := make(chan struct{}, *workers)
	name := podName(*first)
	// From the newest version on, so that nobody is sent what is there already.
	response, err := c.open(ctx, "GET", pods()+"?limit=1", "", nil)
	if err != nil {
		return err
	}
	var listing struct {
		Metadata struct{ ResourceVersion string }
	}
	err = json.NewDecoder(response.Body).Decode(&listing)
	response.Body.Close()
	if err != nil {
		return err
	}
	path := fmt.Sprintf("%s?watch=1&resourceVersion=%s&fieldSelector=metadata.name=%s", pods(), listing.Metadata.ResourceVersion, name)
	var last atomic.Int64 // when the last event came, in nanoseconds since the start
	asked := make([]atomic.Int64, *count)
	delays := make([][]float64, *workers)
	begun := time.Now()
	for worker := range *workers {
		group.Go(func() {
			stream, err := c.open(ctx, "GET", path, "", nil)
			opened <- struct{}{}
			if err != nil {
				failure.CompareAndSwap(nil, err)
				return
			}
			defer stream.Body.Close()
			lines := bufio.NewReaderSize(stream.Body, 64<<10)
			for got := 0; got < *count; {
				line, err := lines.ReadBytes('\n')
				if err != nil {
					failure.CompareAndSwap(nil, fmt.Errorf("a watch ended after %d events: %w", got, err))
					return
				}
				c.bytes.Add(int64(len(line)))
				if bytes.Contains(line[:min(len(line), 40)], []byte("MODIFIED")) {
					now := int64(time.Since(begun))
					delays[worker] = append(delays[worker], time.Duration(now-asked[got].Load()).Seconds())
					got++
					seen.Add(1)
					last.Store(now)
				}
			}
		})
	}
	for range *workers {
		<-opened
	}
	started := time.Since(begun)
	for change := range *count {
		if failure.Load() != nil {
			break
		}
		asked[change].Store(int64(time.Since(begun)))
		if err := c.call(ctx, "PATCH", pods()+"/"+name+"/status", mergePatch, statusBody(change+int(time.Now().UnixNano()%1e6)*1000)); err != nil {
			return err
		}
	}
	group.Wait()
	if err, ok := failure.Load().(error); ok {
		return err
	}
	return report(c, slices.Concat(delays...), (time.Duration(last.Load()) - started).Seconds(), int(seen.Load()))
}

func report(c *client, taken []float64, seconds float64, done int) error {
	found := result{Done: done, Seconds: seconds, Rate: float64(done) / seconds, Bytes: c.bytes.Load()}
	found.Protocol, _ = c.protocol.Load().(string)
	if len(taken) > 0 {
		sort.Float64s(taken)
		found.P50, found.P99 = taken[len(taken)/2], taken[len(taken)*99/100]
	}
	return json.NewEncoder(os.Stdout).Encode(found)
}
