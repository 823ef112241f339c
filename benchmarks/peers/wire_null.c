/* wire_null: answers every request at once with success and does nothing else.

   wire_null [PORT]

   What a load generator reaches against it is the generator's own ceiling on this machine, with what
   the sockets cost: no broker can be seen to be faster. One thread, epoll; prints its port. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ROOM = 1 << 20, OUT_ROOM = 1 << 20, EVENTS = 256, ANSWER_MAX = 160, FRAME_MAX = 16 << 20 };

typedef struct {
    int socket;
    uint8_t *held;
    size_t size, room;
} Connection;

static uint8_t out[OUT_ROOM];

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void write_all(int socket, size_t size) {
    for (size_t at = 0; at < size;) {
        ssize_t wrote = send(socket, out + at, size - at, MSG_NOSIGNAL);
        if (wrote < 0 && errno != EAGAIN) return;
        if (wrote > 0) at += (size_t)wrote;
    }
}

static long opaque_of(const uint8_t *header, size_t size) {
    static const char name[] = "\"opaque\":";
    const uint8_t *found = memmem(header, size, name, sizeof name - 1);
    if (found == NULL) return 0;
    found += sizeof name - 1;
    long value = 0;
    while (found < header + size && *found == ' ') found++;
    for (; found < header + size && *found >= '0' && *found <= '9'; found++) value = value * 10 + (*found - '0');
    return value;
}

/* Answers the whole frames that a connection has sent; false if it is to be closed. */
static int serve(Connection *connection) {
    size_t at = 0, used = 0;
    while (connection->size - at >= 8) {
        uint32_t length, word;
        memcpy(&length, connection->held + at, 4);
        memcpy(&word, connection->held + at + 4, 4);
        length = ntohl(length);
        size_t header = ntohl(word) & 0xFFFFFF;
        if (length > FRAME_MAX || length < 4 + header) return 0;
        if (connection->size - at < 4 + (size_t)length) break;
        if (OUT_ROOM - used < ANSWER_MAX) {
            write_all(connection->socket, used);
            used = 0;
        }
        int size = snprintf((char *)out + used + 8, ANSWER_MAX - 8,
            "{\"code\":0,\"flag\":1,\"language\":\"OTHER\",\"opaque\":%ld,"
            "\"serializeTypeCurrentRPC\":\"JSON\",\"version\":0}", opaque_of(connection->held + at + 8, header));
        uint32_t whole = htonl((uint32_t)size + 4), head = htonl((uint32_t)size);
        memcpy(out + used, &whole, 4);
        memcpy(out + used + 4, &head, 4);
        used += (size_t)size + 8;
        at += 4 + (size_t)length;
    }
    write_all(connection->socket, used);
    memmove(connection->held, connection->held + at, connection->size - at);
    connection->size -= at;
    return 1;
}

int main(int count, char **words) {
    int listener = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                  .sin_port = htons((uint16_t)(count > 1 ? atoi(words[1]) : 0))};
    socklen_t size = sizeof address;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) < 0) fail("bind");
    if (listen(listener, 1024) < 0) fail("listen");
    getsockname(listener, (struct sockaddr *)&address, &size);
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    int poll = epoll_create1(0);
    Connection own = {.socket = listener};
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &own}, events[EVENTS];
    epoll_ctl(poll, EPOLL_CTL_ADD, listener, &event);
    for (;;) {
        int found = epoll_wait(poll, events, EVENTS, -1);
        for (int n = 0; n < found; n++) {
            Connection *connection = events[n].data.ptr;
            if (connection == &own) {
                connection = calloc(1, sizeof *connection);
                if (connection == NULL) fail("memory");
                connection->socket = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
                setsockopt(connection->socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
                event.data.ptr = connection;
                epoll_ctl(poll, EPOLL_CTL_ADD, connection->socket, &event);
                continue;
            }
            if (connection->room - connection->size < ROOM) {
                connection->room = connection->size + 2 * ROOM;
                connection->held = realloc(connection->held, connection->room);
                if (connection->held == NULL) fail("memory");
            }
            ssize_t got = recv(connection->socket, connection->held + connection->size, ROOM, 0);
            if (got > 0) connection->size += (size_t)got;
            if ((got < 0 && errno == EAGAIN) || (got > 0 && serve(connection))) continue;
            close(connection->socket);
            free(connection->held);
            free(connection);
        }
    }
}
