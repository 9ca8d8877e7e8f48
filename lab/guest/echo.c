// A TCP echo: a connection that is open before a migration must still answer after it.
#define _GNU_SOURCE
#include "guest.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

static void *serve(void *argument) {
    int peer = (int)(intptr_t)argument;
    char bytes[16384];
    for (ssize_t n; (n = recv(peer, bytes, sizeof bytes, 0)) > 0;)
        for (ssize_t done = 0; done < n;) {
            ssize_t sent = send(peer, bytes + done, n - done, MSG_NOSIGNAL);
            if (sent <= 0) break;
            done += sent;
        }
    close(peer);
    return NULL;
}

static void *accept_thread(void *argument) {
    int listener = (int)(intptr_t)argument;
    for (;;) {
        int peer = accept(listener, NULL, NULL);
        if (peer >= 0) start_thread(serve, (void *)(intptr_t)peer);
    }
    return NULL;
}

void echo_start(uint16_t port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, 16))
        give_up("GUESTERR cannot listen on TCP port %u", port);
    start_thread(accept_thread, (void *)(intptr_t)listener);
}
