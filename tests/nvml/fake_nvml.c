/* A libnvidia-ml.so.1 with eight H100s that exist only in a text file.
 *
 * The tests compile it, put it on LD_LIBRARY_PATH of the driver process and steer it by the file named in FAKE_NVML_CONTROL,
 * which is read anew at every call. One line each, N is a device's number:
 *     count 8                 devices the driver lists
 *     lost N                  every call about it says GPU_IS_LOST
 *     gone N                  not listed at all (others move up, as with a real driver)
 *     uuid N TEXT             another device in the same slot
 *     hang N FUNCTION         that call about N never returns (N = -1: for calls about no device)
 *     crash N FUNCTION        that call ends the process
 *     ecc N CORRECTED UNCORRECTED
 *     remap N PENDING FAILED
 *     throttle N BITS
 *     pcie N WIDTH GENERATION
 *     busy N PERCENT
 *     power N LIMIT_MW
 *     recovery N ACTION
 *     linkdown N LINK
 *     linkerrors N COUNT
 *     process N PID BYTES GI
 *     xid SEQ N CODE GI       an event; each SEQ is delivered once by a process that listened before it was there
 * MIG instances are kept in the file FAKE_NVML_CONTROL.mig, because a driver outlives the process that asks it.
 *
 * Only what the project calls is here; names, numbers and structures are NVML's public interface.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned int uint;
typedef unsigned long long ull;
typedef int ret;

enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, TIMEOUT = 10, LOST = 15, IN_USE = 19, NO_ROOM = 23 };
enum { MOST = 8, LINKS = 18, PARTS = 64 };

typedef struct { int index; int part; } device_t;             /* part: of PARTS, -1 for the whole device */
typedef struct { int used, index, gi, profile, start, serial, has_ci; } part_t;
typedef struct { char legacy[16]; uint domain, bus, device, id, subsystem; char bus_id[32]; } pci_t;
typedef struct { ull total, free, used; } memory_t;
typedef struct { uint gpu, memory; } use_t;
typedef struct { uint start, size; } place_t;
typedef struct { void *device; uint id, profile; place_t place; } gi_info_t;
typedef struct { uint version, id, p2p, slices, instances, sms, copies, decoders, encoders, jpegs, ofas; ull memory_mb; char name[96]; } gi_profile_t;
typedef struct { uint version, id, slices, instances, sms, copies, decoders, encoders, jpegs, ofas; char name[96]; } ci_profile_t;
typedef struct { void *device; ull type, data; uint gi, ci; } event_t;
typedef struct { uint pid; ull memory; uint gi, ci; } process_t;
typedef struct { uint field, scope; long long time, latency; uint value_type; int code; union { uint u; ull l; } value; } field_t;

static device_t whole[MOST], pieces[PARTS];
static part_t parts[PARTS];
static int serial, mig_on[MOST], delivered;

/* --- the control file --- */

static int look(const char *key, int n, char *a, char *b) {
    const char *path = getenv("FAKE_NVML_CONTROL");
    FILE *f = path ? fopen(path, "r") : NULL;
    char line[256], name[64], first[64], second[96], third[64];
    int found = 0;
    while (f && fgets(line, sizeof line, f)) {
        first[0] = second[0] = third[0] = 0;
        if (sscanf(line, "%63s %63s %95s %63s", name, first, second, third) >= 2 && !strcmp(name, key) && atoi(first) == n) {
            if (a) strcpy(a, second);
            if (b) strcpy(b, third);
            found++;
        }
    }
    if (f) fclose(f);
    return found;
}

static long number(const char *key, int n, int which, long otherwise) {
    char a[96], b[64];
    if (!look(key, n, a, b)) return otherwise;
    return strtol(which ? b : a, NULL, 0);
}

static int has(const char *key, int n, const char *word) {
    const char *path = getenv("FAKE_NVML_CONTROL");
    FILE *f = path ? fopen(path, "r") : NULL;
    char line[256], name[64], first[64], second[96];
    int found = 0;
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "%63s %63s %95s", name, first, second) == 3 && !strcmp(name, key) && atoi(first) == n && !strcmp(second, word)) found = 1;
    if (f) fclose(f);
    return found;
}

static int count(void) {
    const char *path = getenv("FAKE_NVML_CONTROL");
    FILE *f = path ? fopen(path, "r") : NULL;
    char line[256];
    int n = MOST;
    while (f && fgets(line, sizeof line, f)) sscanf(line, "count %d", &n);
    if (f) fclose(f);
    return n;
}

/* Never returns; the file beside the control file says that it hangs. */
static void hang(void) {
    const char *path = getenv("FAKE_NVML_CONTROL");
    char mark[512];
    snprintf(mark, sizeof mark, "%s.hangs", path ? path : "");
    FILE *f = fopen(mark, "w");
    if (f) fclose(f);
    for (;;) pause();
}

/* Every call about a device passes here. */
static ret check(int index, const char *call) {
    if (has("hang", index, call)) hang();
    if (has("crash", index, call)) _exit(11);
    if (index >= 0 && look("lost", index, NULL, NULL)) return LOST;
    return OK;
}
#define ENTER(d) { ret r_ = check(((device_t *)(d))->index, __func__); if (r_) return r_; }
#define INDEX(d) (((device_t *)(d))->index)

static void mig_file(char *path) { snprintf(path, 512, "%s.mig", getenv("FAKE_NVML_CONTROL")); }

static void load(void) {
    char path[512]; mig_file(path);
    memset(parts, 0, sizeof parts); memset(mig_on, 0, sizeof mig_on); serial = 0;
    FILE *f = fopen(path, "rb");
    if (!f) return;
    if (fread(parts, sizeof parts, 1, f) != 1 || fread(mig_on, sizeof mig_on, 1, f) != 1 || fread(&serial, sizeof serial, 1, f) != 1) memset(parts, 0, sizeof parts);
    fclose(f);
}

static void save(void) {
    char path[512]; mig_file(path);
    FILE *f = fopen(path, "wb");
    fwrite(parts, sizeof parts, 1, f); fwrite(mig_on, sizeof mig_on, 1, f); fwrite(&serial, sizeof serial, 1, f);
    fclose(f);
}

/* --- the node --- */

ret nvmlInitWithFlags(uint flags) {
    (void)flags;
    ret r = check(-1, __func__); if (r) return r;
    for (int i = 0; i < MOST; i++) whole[i] = (device_t){i, -1};
    load();
    return OK;
}
ret nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(ret r) { (void)r; return "fake"; }
ret nvmlSystemGetDriverVersion(char *out, uint n) { snprintf(out, n, "570.124.06"); return OK; }
ret nvmlSystemGetCudaDriverVersion_v2(int *out) { *out = 12080; return OK; }

static int listed(uint position) {
    int seen = 0;
    for (int i = 0; i < MOST; i++) { if (look("gone", i, NULL, NULL)) continue; if (seen++ == (int)position) return i; }
    return -1;
}
ret nvmlDeviceGetCount_v2(uint *out) {
    ret r = check(-1, __func__); if (r) return r;
    uint n = 0; while (n < (uint)count() && listed(n) >= 0) n++;
    *out = n; return OK;
}
ret nvmlDeviceGetHandleByIndex_v2(uint position, void **out) {
    int i = listed(position);
    if (i < 0) return INVALID;
    ret r = check(i, __func__); if (r) return r;
    *out = &whole[i]; return OK;
}
ret nvmlDeviceGetHandleByPciBusId_v2(const char *text, void **out) {
    uint domain, bus, device, function;
    if (sscanf(text, "%x:%x:%x.%x", &domain, &bus, &device, &function) != 4) return INVALID;
    for (int i = 0; i < MOST; i++) if (bus == 0x1bu + 0x12u * i && !look("gone", i, NULL, NULL)) {
        ret r = check(i, __func__); if (r) return r;
        *out = &whole[i]; return OK;
    }
    return NOT_FOUND;
}
ret nvmlDeviceGetTopologyCommonAncestor(void *a, void *b, uint *out) {
    ENTER(a)
    int x = INDEX(a), y = INDEX(b);
    *out = x / 2 == y / 2 ? 10 : x / 4 == y / 4 ? 40 : 50; return OK;
}

/* --- a device --- */

ret nvmlDeviceGetName(void *d, char *out, uint n) { ENTER(d) snprintf(out, n, "NVIDIA H100 80GB HBM3"); return OK; }
ret nvmlDeviceGetUUID(void *d, char *out, uint n) {
    ENTER(d)
    device_t *it = d; char other[96], none[64];
    if (it->part >= 0) snprintf(out, n, "MIG-00000000-0000-0000-%04d-%012d", it->index, parts[it->part].serial);
    else if (look("uuid", it->index, other, none)) snprintf(out, n, "GPU-%s", other);
    else snprintf(out, n, "GPU-00000000-0000-0000-0000-%012d", it->index);
    return OK;
}
static void fill_pci(pci_t *out, uint bus) {
    memset(out, 0, sizeof *out);
    out->bus = bus; out->id = 0x233010de;
    snprintf(out->bus_id, sizeof out->bus_id, "00000000:%02X:00.0", bus);
}
ret nvmlDeviceGetPciInfo_v3(void *d, pci_t *out) { ENTER(d) fill_pci(out, 0x1bu + 0x12u * INDEX(d)); return OK; }
ret nvmlDeviceGetMemoryInfo(void *d, memory_t *out) { ENTER(d) out->total = 85520809984ull; out->free = out->total; out->used = 0; return OK; }
ret nvmlDeviceGetNumaNodeId(void *d, int *out) { ENTER(d) *out = INDEX(d) / 4; return OK; }
ret nvmlDeviceGetMinorNumber(void *d, uint *out) { ENTER(d) *out = INDEX(d); return OK; }
ret nvmlDeviceGetCudaComputeCapability(void *d, int *major, int *minor) { ENTER(d) *major = 9; *minor = 0; return OK; }
ret nvmlDeviceGetArchitecture(void *d, uint *out) { ENTER(d) *out = 9; return OK; }
ret nvmlDeviceGetTotalEccErrors(void *d, uint kind, uint counter, ull *out) { ENTER(d) (void)counter; *out = number("ecc", INDEX(d), kind, 0); return OK; }
ret nvmlDeviceGetRemappedRows(void *d, uint *mended, uint *bad, uint *pending, uint *failed) {
    ENTER(d)
    *mended = *bad = 0; *pending = number("remap", INDEX(d), 0, 0); *failed = number("remap", INDEX(d), 1, 0); return OK;
}
ret nvmlDeviceGetCurrentClocksEventReasons(void *d, ull *out) { ENTER(d) *out = number("throttle", INDEX(d), 0, 1); return OK; }
ret nvmlDeviceGetEnforcedPowerLimit(void *d, uint *out) { ENTER(d) *out = number("power", INDEX(d), 0, 700000); return OK; }
ret nvmlDeviceGetPowerManagementDefaultLimit(void *d, uint *out) { ENTER(d) *out = 700000; return OK; }
ret nvmlDeviceGetCurrPcieLinkWidth(void *d, uint *out) { ENTER(d) *out = number("pcie", INDEX(d), 0, 16); return OK; }
ret nvmlDeviceGetMaxPcieLinkWidth(void *d, uint *out) { ENTER(d) *out = 16; return OK; }
ret nvmlDeviceGetCurrPcieLinkGeneration(void *d, uint *out) { ENTER(d) *out = number("pcie", INDEX(d), 1, 5); return OK; }
ret nvmlDeviceGetMaxPcieLinkGeneration(void *d, uint *out) { ENTER(d) *out = 5; return OK; }
ret nvmlDeviceGetTemperature(void *d, uint sensor, uint *out) { ENTER(d) (void)sensor; *out = 41; return OK; }
ret nvmlDeviceGetUtilizationRates(void *d, use_t *out) { ENTER(d) out->gpu = number("busy", INDEX(d), 0, 0); out->memory = 0; return OK; }
ret nvmlDeviceGetFieldValues(void *d, int n, field_t *out) {
    ENTER(d)
    for (int i = 0; i < n; i++) { out[i].code = OK; out[i].value.l = 0; out[i].value.u = number("recovery", INDEX(d), 0, 0); }
    return OK;
}
ret nvmlDeviceGetComputeRunningProcesses_v3(void *d, uint *n, process_t *out) {
    ENTER(d)
    const char *path = getenv("FAKE_NVML_CONTROL");
    FILE *f = path ? fopen(path, "r") : NULL;
    char line[256];
    int index, gi, pid, found = 0;
    ull bytes;
    while (f && fgets(line, sizeof line, f)) {
        gi = -1;
        if (sscanf(line, "process %d %d %llu %d", &index, &pid, &bytes, &gi) < 3 || index != INDEX(d)) continue;
        if (out && (uint)found < *n) out[found] = (process_t){pid, bytes, (uint)gi, ~0u};
        found++;
    }
    if (f) fclose(f);
    ret r = found && (!out || *n < (uint)found) ? TOO_SMALL : OK;
    *n = found; return r;
}
ret nvmlDeviceGetNvLinkState(void *d, uint link, uint *out) {
    ENTER(d)
    char text[16]; snprintf(text, sizeof text, "%u", link);
    if (link >= LINKS) return INVALID;
    *out = !has("linkdown", INDEX(d), text); return OK;
}
ret nvmlDeviceGetNvLinkRemoteDeviceType(void *d, uint link, uint *out) { ENTER(d) (void)link; *out = 2; return OK; }
ret nvmlDeviceGetNvLinkRemotePciInfo_v2(void *d, uint link, pci_t *out) { ENTER(d) fill_pci(out, 5 + link % 4); return OK; }
ret nvmlDeviceGetNvLinkErrorCounter(void *d, uint link, uint kind, ull *out) {
    ENTER(d)
    if (kind > 3) return NOT_SUPPORTED;
    *out = link == 0 && kind == 0 ? number("linkerrors", INDEX(d), 0, 0) : 0; return OK;
}

/* --- events --- */

/* The event that comes after SEQ `from`, if any. */
static int next_event(int from, event_t *event) {
    const char *path = getenv("FAKE_NVML_CONTROL");
    FILE *f = path ? fopen(path, "r") : NULL;
    char line[256];
    int seq, index, code, gi, found = from;
    while (f && fgets(line, sizeof line, f)) {
        gi = -1;
        if (sscanf(line, "xid %d %d %d %d", &seq, &index, &code, &gi) < 3 || seq <= from || (found != from && seq > found)) continue;
        found = seq;
        *event = (event_t){&whole[index], 8, code, (uint)gi, ~0u};
    }
    if (f) fclose(f);
    return found;
}
ret nvmlEventSetCreate(void **out) {
    event_t old; int seq;
    while ((seq = next_event(delivered, &old)) != delivered) delivered = seq;
    *out = &delivered; return OK;
}
ret nvmlEventSetFree(void *set) { (void)set; return OK; }
ret nvmlDeviceRegisterEvents(void *d, ull types, void *set) { ENTER(d) (void)types; (void)set; return OK; }
ret nvmlEventSetWait_v2(void *set, event_t *event, uint ms) {
    (void)set;
    for (uint waited = 0; waited <= ms; waited += 10) {
        int seq = next_event(delivered, event);
        if (seq != delivered) { delivered = seq; return OK; }
        usleep(10000);
    }
    return TIMEOUT;
}

/* --- slices --- */

static const struct { uint kind, id, compute, memory, starts, mb; const char *name; } profiles[] = {
    {0, 19, 1, 1, 0x7f, 9856, "MIG 1g.10gb"}, {1, 14, 2, 2, 0x15, 19968, "MIG 2g.20gb"}, {2, 9, 3, 4, 0x11, 40192, "MIG 3g.40gb"},
    {3, 5, 4, 4, 0x01, 40192, "MIG 4g.40gb"}, {4, 0, 7, 8, 0x01, 80256, "MIG 7g.80gb"},
};
enum { PROFILES = sizeof profiles / sizeof *profiles };

static int by_id(uint id) { for (int p = 0; p < PROFILES; p++) if (profiles[p].id == id) return p; return -1; }

static uint occupied(int index) {
    uint mask = 0;
    for (int i = 0; i < PARTS; i++) if (parts[i].used && parts[i].index == index) mask |= ((1u << profiles[parts[i].profile].memory) - 1) << parts[i].start;
    return mask;
}
ret nvmlDeviceGetMigMode(void *d, uint *now, uint *pending) { ENTER(d) *now = *pending = mig_on[INDEX(d)]; return OK; }
ret nvmlDeviceSetMigMode(void *d, uint mode, uint *status) {
    ENTER(d)
    if (look("process", INDEX(d), NULL, NULL)) return IN_USE;
    if (!mode && occupied(INDEX(d))) return IN_USE;
    mig_on[INDEX(d)] = mode; *status = OK; save(); return OK;
}
ret nvmlDeviceGetMaxMigDeviceCount(void *d, uint *out) { ENTER(d) *out = mig_on[INDEX(d)] ? 7 : 0; return OK; }
ret nvmlDeviceGetGpuInstanceProfileInfoV(void *d, uint kind, gi_profile_t *out) {
    ENTER(d)
    for (int p = 0; p < PROFILES; p++) if (profiles[p].kind == kind) {
        out->id = profiles[p].id; out->slices = profiles[p].compute; out->memory_mb = profiles[p].mb;
        strcpy(out->name, profiles[p].name); return OK;
    }
    return NOT_SUPPORTED;
}
ret nvmlDeviceGetGpuInstancePossiblePlacements_v2(void *d, uint id, place_t *out, uint *n) {
    ENTER(d)
    int p = by_id(id); uint found = 0;
    if (p < 0) return INVALID;
    for (uint s = 0; s < 8; s++) if (profiles[p].starts >> s & 1) { if (out) out[found] = (place_t){s, profiles[p].memory}; found++; }
    *n = found; return OK;
}
static ret create(int index, uint id, int start, void **out) {
    int p = by_id(id), i;
    if (p < 0 || !mig_on[index]) return NOT_SUPPORTED;
    for (int s = 0; s < 8; s++) {
        if ((start >= 0 && s != start) || !(profiles[p].starts >> s & 1)) continue;
        if (occupied(index) & (((1u << profiles[p].memory) - 1) << s)) continue;
        for (i = 0; parts[i].used; i++) if (i == PARTS - 1) return NO_ROOM;
        parts[i] = (part_t){1, index, i + 1, p, s, ++serial, 0};
        save(); *out = &parts[i]; return OK;
    }
    return NO_ROOM;
}
ret nvmlDeviceCreateGpuInstance(void *d, uint id, void **out) { ENTER(d) return create(INDEX(d), id, -1, out); }
ret nvmlDeviceCreateGpuInstanceWithPlacement(void *d, uint id, const place_t *at, void **out) { ENTER(d) return create(INDEX(d), id, at->start, out); }
ret nvmlGpuInstanceDestroy(void *gi) {
    part_t *it = gi;
    if (it->has_ci || look("process", it->index, NULL, NULL)) return IN_USE;
    it->used = 0; save(); return OK;
}
ret nvmlDeviceGetGpuInstances(void *d, uint id, void **out, uint *n) {
    ENTER(d)
    uint found = 0; int p = by_id(id);
    for (int i = 0; i < PARTS; i++) if (parts[i].used && parts[i].index == INDEX(d) && parts[i].profile == p) out[found++] = &parts[i];
    *n = found; return OK;
}
ret nvmlDeviceGetGpuInstanceById(void *d, uint id, void **out) {
    ENTER(d)
    for (int i = 0; i < PARTS; i++) if (parts[i].used && parts[i].index == INDEX(d) && parts[i].gi == (int)id) { *out = &parts[i]; return OK; }
    return NOT_FOUND;
}
ret nvmlGpuInstanceGetInfo(void *gi, gi_info_t *out) {
    part_t *it = gi;
    *out = (gi_info_t){&whole[it->index], it->gi, profiles[it->profile].id, {it->start, profiles[it->profile].memory}};
    return OK;
}
ret nvmlGpuInstanceGetComputeInstanceProfileInfoV(void *gi, uint kind, uint engine, ci_profile_t *out) {
    part_t *it = gi; (void)engine;
    if (profiles[it->profile].kind != kind) return NOT_SUPPORTED;
    out->id = kind; out->slices = profiles[it->profile].compute; return OK;
}
ret nvmlGpuInstanceCreateComputeInstance(void *gi, uint id, void **out) {
    part_t *it = gi; (void)id;
    if (it->has_ci) return NO_ROOM;
    it->has_ci = 1; save(); *out = it; return OK;
}
ret nvmlGpuInstanceGetComputeInstances(void *gi, uint id, void **out, uint *n) {
    part_t *it = gi; (void)id;
    *n = it->has_ci; if (it->has_ci) out[0] = it; return OK;
}
ret nvmlComputeInstanceDestroy(void *ci) {
    part_t *it = ci;
    if (look("process", it->index, NULL, NULL)) return IN_USE;
    it->has_ci = 0; save(); return OK;
}
ret nvmlDeviceGetMigDeviceHandleByIndex(void *d, uint position, void **out) {
    ENTER(d)
    uint seen = 0;
    for (int i = 0; i < PARTS; i++) if (parts[i].used && parts[i].index == INDEX(d) && parts[i].has_ci && seen++ == position) {
        pieces[i] = (device_t){INDEX(d), i}; *out = &pieces[i]; return OK;
    }
    return NOT_FOUND;
}
ret nvmlDeviceGetGpuInstanceId(void *d, uint *out) { ENTER(d) *out = parts[((device_t *)d)->part].gi; return OK; }
ret nvmlDeviceGetComputeInstanceId(void *d, uint *out) { ENTER(d) *out = 0; return OK; }
