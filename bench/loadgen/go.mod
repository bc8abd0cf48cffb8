// The load generator of bench/apiserver.py: standard library only.
module remuda.dev/bench/loadgen

go 1.26
