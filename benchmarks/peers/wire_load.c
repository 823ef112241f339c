/* wire_load: sends from many connections, some requests on each connection's way at a time.

   wire_load HOST PORT TOPIC CONNECTIONS OUTSTANDING BYTES WARM_S SECONDS [QUEUES [SENDERS [TOPICS]]]

   One thread, epoll, no allocation once it runs: it takes a fifth of what a broker takes for the
   same messages, where an official client takes more than the broker. SENDERS of the connections
   send (all of them unless told otherwise), the others stay silent. TOPICS names TOPIC-0, TOPIC-1 …
   in turns. Prints one line of JSON: messages acknowledged, refused, a second, latencies in us.

   Frames are those of the Java client for a plain send (SEND_MESSAGE_V2, JSON header). */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { READ_SIZE = 1 << 16, HEADER_ROOM = 1024, BUCKETS = 4096, HELD_MAX = 1 << 15 };

typedef struct {
    int socket;
    uint8_t *held; /* the beginning of an answer */
    size_t held_size;
    uint8_t *out; /* what the socket did not take */
    size_t out_start, out_size;
} Connection;

static Connection *connections;
static int64_t *sent_at; /* by opaque: connection * outstanding + slot */
static long outstanding, body_size, queues = 4, topics = 0;
static const char *topic;
static uint8_t *frame_memory;
static size_t frame_room;
static int epoll_fd;
static uint64_t buckets[BUCKETS], acknowledged, refused, measured;
static int64_t measure_from;
static uint64_t next_message;

static int64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static void fail(const char *what) {
    perror(what);
    exit(1);
}

/* A bucket for a latency in ns: 64 for every power of two, so within 1.6 %. */
static unsigned bucket_of(uint64_t value) {
    if (value < 64) return (unsigned)value;
    unsigned power = 63u - (unsigned)__builtin_clzll(value);
    unsigned bucket = ((power - 5) << 6) + (unsigned)((value >> (power - 6)) & 63);
    return bucket < BUCKETS ? bucket : BUCKETS - 1;
}

static double value_of(unsigned bucket) {
    if (bucket < 64) return bucket;
    unsigned power = (bucket >> 6) + 5;
    return ((uint64_t)1 << power) + ((double)(bucket & 63) + 0.5) * (double)((uint64_t)1 << (power - 6));
}

static double percentile(double part) {
    uint64_t wanted = (uint64_t)(part * (double)measured), seen = 0;
    for (unsigned bucket = 0; bucket < BUCKETS; bucket++) {
        seen += buckets[bucket];
        if (seen > wanted) return value_of(bucket) / 1000.0;
    }
    return 0;
}

static size_t make_frame(uint8_t *out, long opaque) {
    char name[300];
    uint64_t number = next_message++;
    if (topics > 0) snprintf(name, sizeof name, "%s-%llu", topic, (unsigned long long)(number * 7919 % (uint64_t)topics));
    else snprintf(name, sizeof name, "%s", topic);
    int64_t wall = (int64_t)time(NULL) * 1000;
    int header = snprintf((char *)out + 8, HEADER_ROOM,
        "{\"code\":310,\"extFields\":{\"a\":\"wire-load\",\"b\":\"%s\",\"c\":\"TBW102\",\"d\":\"4\",\"e\":\"%llu\","
        "\"f\":\"0\",\"g\":\"%lld\",\"h\":\"0\",\"i\":\"UNIQ_KEY\\u00017F000001%08lX18B4AAC2%016llX\\u0002WAIT\\u0001true\","
        "\"j\":\"0\",\"k\":\"false\",\"m\":\"false\"},\"flag\":0,\"language\":\"JAVA\",\"opaque\":%ld,"
        "\"serializeTypeCurrentRPC\":\"JSON\",\"version\":493}",
        name, (unsigned long long)(number / (topics > 0 ? (uint64_t)topics : 1) % (uint64_t)queues), (long long)wall, (unsigned long)getpid(),
        (unsigned long long)number, opaque);
    uint32_t size = htonl((uint32_t)(4 + header + body_size)), word = htonl((uint32_t)header);
    memcpy(out, &size, 4);
    memcpy(out + 4, &word, 4);
    memset(out + 8 + header, 'x', (size_t)body_size);
    return (size_t)(8 + header + body_size);
}

static void flush_out(Connection *connection) {
    while (connection->out_size > 0) {
        ssize_t wrote = send(connection->socket, connection->out + connection->out_start, connection->out_size, MSG_NOSIGNAL);
        if (wrote < 0) {
            if (errno == EAGAIN) return;
            fail("send");
        }
        connection->out_start += (size_t)wrote;
        connection->out_size -= (size_t)wrote;
    }
    connection->out_start = 0;
}

/* Writes a request for each of the slots at once. */
static void send_slots(Connection *connection, const long *slots, long count, int64_t now) {
    size_t size = 0;
    long base = (long)(connection - connections) * outstanding;
    for (long n = 0; n < count; n++) {
        size += make_frame(frame_memory + size, base + slots[n]);
        sent_at[base + slots[n]] = now;
    }
    if (connection->out_size > 0) {
        fprintf(stderr, "the broker reads slower than it answers\n");
        exit(1);
    }
    ssize_t wrote = send(connection->socket, frame_memory, size, MSG_NOSIGNAL);
    if (wrote < 0 && errno != EAGAIN) fail("send");
    if (wrote < 0) wrote = 0;
    if ((size_t)wrote < size) {
        memcpy(connection->out, frame_memory + wrote, size - (size_t)wrote);
        connection->out_start = 0;
        connection->out_size = size - (size_t)wrote;
        struct epoll_event event = {.events = EPOLLIN | EPOLLOUT, .data.ptr = connection};
        epoll_ctl(epoll_fd, EPOLL_CTL_MOD, connection->socket, &event);
    }
}

static long number_behind(const uint8_t *header, size_t size, const char *name) {
    const uint8_t *found = memmem(header, size, name, strlen(name));
    if (found == NULL) {
        fprintf(stderr, "an answer without %s: %.*s\n", name, (int)size, (const char *)header);
        exit(1);
    }
    return strtol((const char *)found + strlen(name), NULL, 10);
}

static int is_ending;

/* Takes what the socket has, and sends as many requests as were answered. */
static void read_answers(Connection *connection, long *slots) {
    static uint8_t buffer[READ_SIZE + HELD_MAX];
    memcpy(buffer, connection->held, connection->held_size);
    ssize_t got = recv(connection->socket, buffer + connection->held_size, READ_SIZE, 0);
    if (got <= 0) {
        if (got < 0 && errno == EAGAIN) return;
        fail("the broker closed a connection");
    }
    size_t size = connection->held_size + (size_t)got, position = 0;
    int64_t now = now_ns();
    long count = 0, base = (long)(connection - connections) * outstanding;
    while (size - position >= 8) {
        uint32_t length, word;
        memcpy(&length, buffer + position, 4);
        memcpy(&word, buffer + position + 4, 4);
        length = ntohl(length);
        if (size - position < 4 + (size_t)length) break;
        const uint8_t *header = buffer + position + 8;
        size_t header_size = ntohl(word) & 0xFFFFFF;
        long opaque = number_behind(header, header_size, "\"opaque\":");
        if (number_behind(header, header_size, "\"code\":") == 0) acknowledged++;
        else if (refused++ == 0) fprintf(stderr, "refused: %.*s\n", (int)header_size, (const char *)header);
        if (sent_at[opaque] >= measure_from && measure_from) {
            buckets[bucket_of((uint64_t)(now - sent_at[opaque]))]++;
            measured++;
        }
        slots[count++] = opaque - base;
        position += 4 + length;
    }
    connection->held_size = size - position;
    memcpy(connection->held, buffer + position, connection->held_size);
    if (count > 0 && !is_ending) send_slots(connection, slots, count, now);
}

int main(int count, char **words) {
    if (count < 9) {
        fprintf(stderr, "usage: wire_load HOST PORT TOPIC CONNECTIONS OUTSTANDING BYTES WARM_S SECONDS [QUEUES [SENDERS [TOPICS]]]\n");
        return 2;
    }
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(words[2]))};
    if (inet_pton(AF_INET, words[1], &address.sin_addr) != 1) return 2;
    topic = words[3];
    long total = atol(words[4]);
    outstanding = atol(words[5]);
    body_size = atol(words[6]);
    double warm = atof(words[7]), seconds = atof(words[8]);
    if (count > 9) queues = atol(words[9]);
    long senders = count > 10 && atol(words[10]) > 0 ? atol(words[10]) : total;
    if (count > 11) topics = atol(words[11]);
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    frame_room = (size_t)(HEADER_ROOM + 8 + body_size);
    frame_memory = malloc(frame_room * (size_t)outstanding);
    connections = calloc((size_t)total, sizeof *connections);
    sent_at = calloc((size_t)(total * outstanding), sizeof *sent_at);
    long *slots = malloc(sizeof *slots * (size_t)(outstanding + 1));
    epoll_fd = epoll_create1(0);
    for (long n = 0; n < total; n++) {
        Connection *connection = connections + n;
        connection->socket = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(connection->socket, (struct sockaddr *)&address, sizeof address) < 0) fail("connect");
        int on = 1;
        setsockopt(connection->socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        fcntl(connection->socket, F_SETFL, O_NONBLOCK);
        connection->held = malloc(HELD_MAX);
        connection->out = malloc(frame_room * (size_t)outstanding);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = connection};
        epoll_ctl(epoll_fd, EPOLL_CTL_ADD, connection->socket, &event);
    }
    for (long n = 0; n < outstanding; n++) slots[n] = n;
    int64_t start = now_ns();
    for (long n = 0; n < senders; n++) {
        send_slots(connections + n, slots, outstanding, now_ns());
    }
    int64_t warm_end = start + (int64_t)(warm * 1e9), end = warm_end + (int64_t)(seconds * 1e9);
    uint64_t before = 0;
    int64_t began = 0;
    struct epoll_event events[512];
    for (;;) {
        int64_t now = now_ns();
        if (!measure_from && now >= warm_end) {
            measure_from = began = now;
            before = acknowledged;
        }
        if (now >= end) break;
        int ready = epoll_wait(epoll_fd, events, 512, 100);
        for (int n = 0; n < ready; n++) {
            Connection *connection = events[n].data.ptr;
            if (events[n].events & EPOLLOUT) {
                flush_out(connection);
                if (connection->out_size == 0) {
                    struct epoll_event event = {.events = EPOLLIN, .data.ptr = connection};
                    epoll_ctl(epoll_fd, EPOLL_CTL_MOD, connection->socket, &event);
                }
            }
            if (events[n].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) read_answers(connection, slots);
        }
    }
    double took = (double)(now_ns() - began) / 1e9;
    uint64_t counted = acknowledged - before;
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    printf("{\"ok\": %llu, \"refused\": %llu, \"per_s\": %.0f, \"p50_us\": %.1f, \"p99_us\": %.1f, \"p999_us\": %.1f, \"max_us\": %.1f, \"own_cpu_s\": %.2f}\n",
           (unsigned long long)counted, (unsigned long long)refused, (double)counted / took, percentile(0.5), percentile(0.99),
           percentile(0.999), percentile(0.9999999),
           (double)usage.ru_utime.tv_sec + (double)usage.ru_utime.tv_usec / 1e6 + (double)usage.ru_stime.tv_sec + (double)usage.ru_stime.tv_usec / 1e6);
    return 0;
}
