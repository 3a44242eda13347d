/* A stand-in for the NVIDIA driver's library, with NVML's C interface, so that the real Python bindings are tested.
 *
 * The machine it plays stands in the text file named by NVML_STUB, read anew at every call, so that a test can change it:
 *   init CODE                                             what initialisation answers (0 = success)
 *   card ID STATE MEMORY TOTAL_MIB USED_MIB UTIL UUID BUS NAME   STATE, MEMORY: 0 or the NVML error to answer; UTIL -1: unsupported
 *   link A B LEVEL                                        NVML's topology level between two cards
 *   nvlink A B                                            an active NVLink from A to B
 *   process ID PID MIB                                    a process on a card
 *   activity ID POWER_MW LIMIT_MW MHZ MAX_MHZ CELSIUS REASONS   without such a line none of these is supported
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7 };

typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned gpu, memory; } utilization_t;
typedef struct { char legacy[16]; unsigned domain, bus, device, pci_device, pci_subsystem; char bus_id[32]; } pci_t;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } process_t;
typedef struct { int id, state, memory, total, used, util; char uuid[96], bus[32], name[96]; } card_t;

static FILE *open_machine(void) {
    const char *path = getenv("NVML_STUB");
    return path ? fopen(path, "r") : NULL;
}

static int read_card(const char *line, card_t *card) {
    return sscanf(line, "card %d %d %d %d %d %d %95s %31s %95[^\n]", &card->id, &card->state, &card->memory, &card->total,
                  &card->used, &card->util, card->uuid, card->bus, card->name) == 9;
}

static int find_card(int id, card_t *card) {
    char line[512];
    FILE *file = open_machine();
    int found = 0;
    while (file && !found && fgets(line, sizeof line, file)) found = read_card(line, card) && card->id == id;
    if (file) fclose(file);
    return found;
}

static int id_of(void *handle) { return (int)(long)handle - 1; }

int nvmlInitWithFlags(unsigned flags) {
    char line[512];
    int code = SUCCESS;
    FILE *file = open_machine();
    (void)flags;
    while (file && fgets(line, sizeof line, file)) sscanf(line, "init %d", &code);
    if (file) fclose(file);
    return code;
}

int nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(int code) { (void)code; return "an error of the stub"; }

int nvmlSystemGetDriverVersion(char *text, unsigned size) { snprintf(text, size, "570.00"); return SUCCESS; }

int nvmlDeviceGetCount_v2(unsigned *count) {
    char line[512];
    card_t card;
    FILE *file = open_machine();
    *count = 0;
    while (file && fgets(line, sizeof line, file)) *count += read_card(line, &card);
    if (file) fclose(file);
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    card_t card;
    if (!find_card((int)index, &card)) return INVALID_ARGUMENT;
    *handle = (void *)(long)(index + 1);
    return card.state;
}

int nvmlDeviceGetName(void *handle, char *text, unsigned size) {
    card_t card;
    if (!find_card(id_of(handle), &card)) return INVALID_ARGUMENT;
    snprintf(text, size, "%s", card.name);
    return SUCCESS;
}

/* "capability ID MAJOR MINOR"; without such a line an RTX 4090's. */
int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) {
    char line[512];
    int id, a, b;
    FILE *file = open_machine();
    *major = 8, *minor = 9;
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "capability %d %d %d", &id, &a, &b) == 3 && id == id_of(handle)) *major = a, *minor = b;
    if (file) fclose(file);
    return SUCCESS;
}

int nvmlDeviceGetUUID(void *handle, char *text, unsigned size) {
    card_t card;
    if (!find_card(id_of(handle), &card)) return INVALID_ARGUMENT;
    snprintf(text, size, "%s", card.uuid);
    return SUCCESS;
}

int nvmlDeviceGetPciInfo_v3(void *handle, pci_t *pci) {
    card_t card;
    if (!find_card(id_of(handle), &card)) return INVALID_ARGUMENT;
    memset(pci, 0, sizeof *pci);
    snprintf(pci->bus_id, sizeof pci->bus_id, "%s", card.bus);
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(void *handle, memory_t *memory) {
    card_t card;
    if (!find_card(id_of(handle), &card)) return INVALID_ARGUMENT;
    if (card.memory) return card.memory;
    memory->total = (unsigned long long)card.total << 20;
    memory->used = (unsigned long long)card.used << 20;
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(void *handle, utilization_t *utilization) {
    card_t card;
    if (!find_card(id_of(handle), &card)) return INVALID_ARGUMENT;
    if (card.util < 0) return NOT_SUPPORTED;
    utilization->gpu = (unsigned)card.util;
    utilization->memory = 0;
    return SUCCESS;
}

enum { POWER, POWER_LIMIT, CLOCK, MAX_CLOCK, CELSIUS, REASONS, FACTS };

static int read_activity(void *handle, int fact, unsigned *value) {
    char line[512];
    int id, found = 0;
    unsigned facts[FACTS];
    FILE *file = open_machine();
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "activity %d %u %u %u %u %u %u", &id, &facts[0], &facts[1], &facts[2], &facts[3], &facts[4],
                   &facts[5]) != 7 || id != id_of(handle)) continue;
        *value = facts[fact];
        found = 1;
    }
    if (file) fclose(file);
    return found ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetPowerUsage(void *handle, unsigned *milliwatts) { return read_activity(handle, POWER, milliwatts); }

int nvmlDeviceGetEnforcedPowerLimit(void *handle, unsigned *milliwatts) { return read_activity(handle, POWER_LIMIT, milliwatts); }

int nvmlDeviceGetClockInfo(void *handle, int type, unsigned *mhz) { return type == 1 ? read_activity(handle, CLOCK, mhz) : NOT_SUPPORTED; }

int nvmlDeviceGetMaxClockInfo(void *handle, int type, unsigned *mhz) { return type == 1 ? read_activity(handle, MAX_CLOCK, mhz) : NOT_SUPPORTED; }

int nvmlDeviceGetTemperature(void *handle, int sensor, unsigned *celsius) { return sensor ? NOT_SUPPORTED : read_activity(handle, CELSIUS, celsius); }

int nvmlDeviceGetCurrentClocksThrottleReasons(void *handle, unsigned long long *reasons) {
    unsigned mask = 0;
    int code = read_activity(handle, REASONS, &mask);
    *reasons = mask;
    return code;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, process_t *processes) {
    char line[512];
    int id, pid, mib;
    unsigned room = *count, found = 0;
    FILE *file = open_machine();
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "process %d %d %d", &id, &pid, &mib) != 3 || id != id_of(handle)) continue;
        if (processes && found < room) {
            memset(&processes[found], 0, sizeof *processes);
            processes[found].pid = (unsigned)pid;
            processes[found].used = (unsigned long long)mib << 20;
        }
        found++;
    }
    if (file) fclose(file);
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}

int nvmlDeviceGetTopologyCommonAncestor(void *first, void *second, unsigned *level) {
    char line[512];
    int a, b, value, found = 0;
    FILE *file = open_machine();
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "link %d %d %d", &a, &b, &value) != 3) continue;
        if ((a == id_of(first) && b == id_of(second)) || (b == id_of(first) && a == id_of(second))) {
            *level = (unsigned)value;
            found = 1;
        }
    }
    if (file) fclose(file);
    return found ? SUCCESS : NOT_SUPPORTED;
}

/* Link 0 of a card is the one the file names; there are no others. */
static int find_peer(void *handle, unsigned link, card_t *peer) {
    char line[512];
    int a, b, found = 0;
    FILE *file = open_machine();
    while (file && link == 0 && !found && fgets(line, sizeof line, file)) {
        if (sscanf(line, "nvlink %d %d", &a, &b) != 2) continue;
        if (a == id_of(handle)) found = find_card(b, peer);
        else if (b == id_of(handle)) found = find_card(a, peer);
    }
    if (file) fclose(file);
    return found;
}

int nvmlDeviceGetNvLinkState(void *handle, unsigned link, unsigned *active) {
    card_t peer;
    if (link > 0) return INVALID_ARGUMENT;
    if (!find_peer(handle, link, &peer)) return NOT_SUPPORTED;
    *active = 1;
    return SUCCESS;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *handle, unsigned link, pci_t *pci) {
    card_t peer;
    if (!find_peer(handle, link, &peer)) return NOT_SUPPORTED;
    memset(pci, 0, sizeof *pci);
    snprintf(pci->bus_id, sizeof pci->bus_id, "%s", peer.bus);
    return SUCCESS;
}
