/* A plain TCP ping-pong, to hold `linerate bench pingpong` against: blocking sockets, TCP_NODELAY, nothing else.
 *
 *   pingpong server ADDRESS PORT
 *   pingpong client ADDRESS PORT BYTES:REPETITIONS ...
 *
 * The client prints a line for each size: bytes, repetitions, half a round trip in microseconds. Before each, a tenth of the
 * repetitions, at least 10, is played and not counted. The server serves one client and ends. */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define LARGEST (4u << 20)

static char outgoing[LARGEST], incoming[LARGEST];

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static void send_all(int fd, const char *from, size_t left)
{
    while (left > 0) {
        ssize_t sent = send(fd, from, left, MSG_NOSIGNAL);
        if (sent <= 0)
            fail("send");
        from += sent;
        left -= (size_t)sent;
    }
}

static void receive_all(int fd, char *to, size_t left)
{
    while (left > 0) {
        ssize_t came = recv(fd, to, left, 0);
        if (came <= 0)
            fail("recv");
        to += came;
        left -= (size_t)came;
    }
}

static void prepare(int fd)
{
    int one = 1;
    /* Nobody waits for ever for a peer that hangs. */
    struct timeval limit = {.tv_sec = 20};
    if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) != 0 ||
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) != 0 ||
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) != 0)
        fail("setsockopt");
    memset(outgoing, 'x', sizeof outgoing);
    memset(incoming, 'y', sizeof incoming);
}

static void serve(int fd)
{
    uint32_t order[2]; /* bytes, repetitions; 0 repetitions end it */
    for (;;) {
        receive_all(fd, (char *)order, sizeof order);
        uint32_t bytes = ntohl(order[0]), repetitions = ntohl(order[1]);
        if (repetitions == 0)
            return;
        if (bytes == 0 || bytes > LARGEST)
            exit(1);
        while (repetitions-- > 0) {
            receive_all(fd, incoming, bytes);
            send_all(fd, outgoing, bytes);
        }
    }
}

static double play(int fd, uint32_t bytes, uint32_t repetitions)
{
    struct timespec began, ended;
    uint32_t order[2] = {htonl(bytes), htonl(repetitions)};
    send_all(fd, (char *)order, sizeof order);
    clock_gettime(CLOCK_MONOTONIC, &began);
    for (uint32_t done = 0; done < repetitions; done++) {
        send_all(fd, outgoing, bytes);
        receive_all(fd, incoming, bytes);
    }
    clock_gettime(CLOCK_MONOTONIC, &ended);
    double us = (double)(ended.tv_sec - began.tv_sec) * 1e6 + (double)(ended.tv_nsec - began.tv_nsec) / 1e3;
    return us / repetitions / 2;
}

static void ask(int fd, int count, char **jobs)
{
    for (int job = 0; job < count; job++) {
        unsigned bytes, repetitions;
        if (sscanf(jobs[job], "%u:%u", &bytes, &repetitions) != 2 || bytes == 0 || bytes > LARGEST || repetitions == 0) {
            fprintf(stderr, "not BYTES:REPETITIONS: %s\n", jobs[job]);
            exit(2);
        }
        uint32_t warm_up = repetitions / 10 > 10 ? repetitions / 10 : 10;
        play(fd, bytes, warm_up < repetitions ? warm_up : repetitions);
        printf("%u %u %.4f\n", bytes, repetitions, play(fd, bytes, repetitions));
    }
    uint32_t end[2] = {0, 0};
    send_all(fd, (char *)end, sizeof end);
}

int main(int count, char **arguments)
{
    if (count < 4) {
        fprintf(stderr, "usage: pingpong server|client ADDRESS PORT [BYTES:REPETITIONS ...]\n");
        return 2;
    }
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(arguments[3]))};
    if (inet_pton(AF_INET, arguments[2], &address.sin_addr) != 1)
        fail("address");
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    if (fd < 0)
        fail("socket");
    if (strcmp(arguments[1], "server") == 0) {
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (bind(fd, (struct sockaddr *)&address, sizeof address) != 0 || listen(fd, 1) != 0)
            fail("listen");
        int client = accept(fd, NULL, NULL);
        if (client < 0)
            fail("accept");
        prepare(client);
        serve(client);
        return 0;
    }
    prepare(fd);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0)
        fail("connect");
    ask(fd, count - 4, arguments + 4);
    return 0;
}
