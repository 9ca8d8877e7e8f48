// A UDP packet every 1/HZ seconds: whoever listens sees the blackout as the network does.
// Packet, little-endian 64-bit words: magic, sequence, guest's monotonic ns, passes, mem_bad, disk_ops, disk_bad.
#define _GNU_SOURCE
#include "guest.h"

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define HEARTBEAT_MAGIC 0x3054414542544c4cull
#define DEVICE "eth0"

static struct {
    struct sockaddr_in peer;
    unsigned hz;
    int socket;
} beat;

static void set(int socket, unsigned long request, struct ifreq *what, const char *name) {
    if (ioctl(socket, request, what)) give_up("GUESTERR cannot set the %s of " DEVICE ": errno %d", name, errno);
}

static void configure(int socket, const char *address, int prefix) {
    struct ifreq request = {.ifr_name = DEVICE};
    struct sockaddr_in *at = (struct sockaddr_in *)&request.ifr_addr;
    *at = (struct sockaddr_in){.sin_family = AF_INET};
    if (inet_pton(AF_INET, address, &at->sin_addr) != 1) give_up("GUESTERR net= has no address");
    set(socket, SIOCSIFADDR, &request, "address");
    at->sin_addr.s_addr = htonl(prefix ? ~0u << (32 - prefix) : 0);
    set(socket, SIOCSIFNETMASK, &request, "netmask");
    request.ifr_flags = IFF_UP | IFF_RUNNING;
    set(socket, SIOCSIFFLAGS, &request, "flags");
}

static void *beat_thread(void *argument) {
    (void)argument;
    uint64_t interval = 1000000000ull / beat.hz, due = monotonic_ns();
    for (uint64_t sequence = 1;; sequence++) {
        uint64_t packet[] = {HEARTBEAT_MAGIC, sequence, monotonic_ns(), LOOK(passes), LOOK(mem_bad), LOOK(disk_ops), LOOK(disk_bad)};
        sendto(beat.socket, packet, sizeof packet, MSG_DONTWAIT, (struct sockaddr *)&beat.peer, sizeof beat.peer);
        due += interval;
        uint64_t now = monotonic_ns();
        if (due + interval < now) due = now; // late: no burst of catching up
        struct timespec at = {due / 1000000000, due % 1000000000};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
    }
    return NULL;
}

void heartbeat_start(const char *spec) {
    char address[32], peer[32];
    int prefix = 0, port = 0;
    beat.hz = 500;
    if (sscanf(spec, "%31[0-9.]/%d,%31[0-9.],%d,%u", address, &prefix, peer, &port, &beat.hz) < 4 || prefix < 0 || prefix > 32 || !beat.hz)
        give_up("GUESTERR net=%s is not ADDRESS/PREFIX,PEER,PORT,HZ", spec);
    beat.socket = socket(AF_INET, SOCK_DGRAM, 0);
    configure(beat.socket, address, prefix);
    beat.peer = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port)};
    inet_pton(AF_INET, peer, &beat.peer.sin_addr);

    // Ahead of the threads that write memory, so that a gap means that the guest was stopped and not that it was busy.
    pthread_attr_t attributes;
    struct sched_param priority = {.sched_priority = 10};
    pthread_t thread;
    pthread_attr_init(&attributes);
    pthread_attr_setinheritsched(&attributes, PTHREAD_EXPLICIT_SCHED);
    pthread_attr_setschedpolicy(&attributes, SCHED_FIFO);
    pthread_attr_setschedparam(&attributes, &priority);
    if (pthread_create(&thread, &attributes, beat_thread, NULL)) give_up("GUESTERR cannot start the heartbeat");
    report("NET %s/%d", address, prefix);
}
