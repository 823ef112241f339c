/* wire_load: requests from many connections, some on each connection's way at a time.

   wire_load HOST PORT TOPIC CONNECTIONS OUTSTANDING BYTES WARM_S SECONDS [QUEUES [SENDERS [TOPICS [KIND [BROKER [RATE [GROUP]]]]]]]

   One thread, epoll, no allocation once it runs: it takes a fifth of what a broker takes for the
   same messages, where an official client takes more than the broker. SENDERS of the connections
   send (all of them unless told otherwise), the others stay silent. TOPICS: each message goes to one
   of TOPIC-0, TOPIC-1 ... and one of its QUEUES by chance (the same ones in each run). RATE: so many requests
   a second at most, those of each ms together; an answered one waits for its turn, and that is no part of its latency.

   KIND is what is asked:
     send       messages of BYTES (unless told otherwise)
     pull       up to 32 messages of a queue from its beginning to its end, and again from the beginning
     follow     the same once, then what comes: an empty answer waits at the broker for up to 15 s; one request for each queue
     pop        up to 32 messages of a queue, then an acknowledgement for each, one after the other;
                BROKER is the name that receipts have
     commit     the offset of the group in a queue
     heartbeat  of a client that sends and reads

   GROUP reads and commits, wire-load unless told otherwise.

   Prints one line of JSON: messages (of pull and follow those read, of pop those acknowledged, of commit and
   heartbeat requests), refused requests, messages a second, all messages and requests with those of
   the warm-up, latencies of requests in us, and of follow how many messages it had still to read. Its seconds
   end with the last message that it read.

   Frames are those of the Java client with a JSON header; a send is SEND_MESSAGE_V2. */
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
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { READ_SIZE = 1 << 16, HEADER_ROOM = 2048, BUCKETS = 4096, HELD_MAX = 1 << 20, ASKED = 32 };

enum { SEND, PULL, FOLLOW, POP, COMMIT, HEARTBEAT };

typedef struct {
    int socket;
    uint8_t *held; /* the beginning of an answer */
    size_t held_size;
    uint8_t *out; /* what the socket did not take */
    size_t out_start, out_size;
} Connection;

/* What a request on the way is about: where a queue is read, and what of a pop is not acknowledged. */
typedef struct {
    long queue;
    int64_t offset, behind;
    int64_t start, pop_time, revive, popped[ASKED];
    int popped_count, acked;
} Slot;

static Connection *connections;
static Slot *state;
static int kind;
static const char *broker = "broker-a", *group = "wire-load";
static int64_t *sent_at; /* by opaque: connection * outstanding + slot */
static long outstanding, body_size, queues = 4, topics = 0;
static const char *topic;
static uint8_t *frame_memory;
static size_t frame_room;
static int epoll_fd;
static uint64_t buckets[BUCKETS], acknowledged, requests, refused, measured;
static int64_t measure_from, read_last;
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

static size_t put_sizes(uint8_t *out, int header, size_t body) {
    uint32_t size = htonl((uint32_t)(4 + (size_t)header + body)), word = htonl((uint32_t)header);
    memcpy(out, &size, 4);
    memcpy(out + 4, &word, 4);
    return 8 + (size_t)header + body;
}

/* A request of another kind than a send. */
static size_t make_request(uint8_t *out, long opaque) {
    const Slot *slot = state + opaque;
    char fields[HEADER_ROOM - 256];
    const char *body = "";
    int code = 0;
    int64_t wall = (int64_t)time(NULL) * 1000;
    fields[0] = 0;
    if (kind == PULL || kind == FOLLOW) {
        code = 11;
        snprintf(fields, sizeof fields,
            "\"consumerGroup\":\"%s\",\"topic\":\"%s\",\"queueId\":\"%ld\",\"queueOffset\":\"%lld\","
            "\"maxMsgNums\":\"%d\",\"sysFlag\":\"%d\",\"commitOffset\":\"0\",\"suspendTimeoutMillis\":\"15000\","
            "\"subVersion\":\"0\",\"expressionType\":\"TAG\"",
            group, topic, slot->queue, (long long)slot->offset, ASKED, kind == FOLLOW ? 2 : 0);
    } else if (kind == POP && slot->acked < slot->popped_count) {
        code = 200051;
        long long offset = (long long)slot->popped[slot->acked];
        snprintf(fields, sizeof fields,
            "\"consumerGroup\":\"%s\",\"topic\":\"%s\",\"queueId\":\"%ld\",\"offset\":\"%lld\","
            "\"extraInfo\":\"%lld %lld 60000 %lld 0 %s %ld %lld\"",
            group, topic, slot->queue, offset, (long long)slot->start, (long long)slot->pop_time, (long long)slot->revive, broker, slot->queue, offset);
    } else if (kind == POP) {
        code = 200050;
        snprintf(fields, sizeof fields,
            "\"consumerGroup\":\"%s\",\"topic\":\"%s\",\"queueId\":\"%ld\",\"maxMsgNums\":\"%d\","
            "\"invisibleTime\":\"60000\",\"pollTime\":\"0\",\"bornTime\":\"%lld\",\"initMode\":\"0\",\"expType\":\"TAG\",\"exp\":\"*\"",
            group, topic, slot->queue, ASKED, (long long)wall + 1000);
    } else if (kind == COMMIT) {
        code = 15;
        snprintf(fields, sizeof fields,
            "\"consumerGroup\":\"%s\",\"topic\":\"%s\",\"queueId\":\"%ld\",\"commitOffset\":\"%llu\"",
            group, topic, slot->queue, (unsigned long long)(requests + 1));
    } else {
        code = 34;
        body = "{\"clientID\":\"wire-load\",\"consumerDataSet\":[{\"consumeFromWhere\":\"CONSUME_FROM_FIRST_OFFSET\","
               "\"consumeType\":\"CONSUME_PASSIVELY\",\"groupName\":\"wire-load\",\"messageModel\":\"CLUSTERING\","
               "\"subscriptionDataSet\":[{\"classFilterMode\":false,\"codeSet\":[],\"expressionType\":\"TAG\","
               "\"subString\":\"*\",\"subVersion\":1,\"tagsSet\":[],\"topic\":\"connections\"}],\"unitMode\":false}],"
               "\"producerDataSet\":[{\"groupName\":\"wire-load\"}]}";
    }
    int header = snprintf((char *)out + 8, HEADER_ROOM,
        "{\"code\":%d,\"extFields\":{%s},\"flag\":0,\"language\":\"JAVA\",\"opaque\":%ld,"
        "\"serializeTypeCurrentRPC\":\"JSON\",\"version\":493}", code, fields, opaque);
    memcpy(out + 8 + header, body, strlen(body));
    return put_sizes(out, header, strlen(body));
}

static uint64_t next_random(void) { /* xorshift: the same topics and queues in each run */
    static uint64_t value = 88172645463325252u;
    value ^= value << 13;
    value ^= value >> 7;
    return value ^= value << 17;
}

/* A send's header but for its numbers, which have the same number of digits in all sends of a queue. Made
   when the queue gets its first: printing each would take as long as all else that this program does. */
typedef struct {
    uint8_t *text; /* up to the body, sizes included */
    size_t size;
    size_t born, number, opaque; /* where these are */
} Template;

enum { BORN_DIGITS = 13, NUMBER_DIGITS = 16, OPAQUE_DIGITS = 7, OPAQUE_FROM = 1000000 };

static Template *templates; /* by topic and queue */

static size_t position_behind(const Template *made, const char *text) {
    return (size_t)((const uint8_t *)memmem(made->text, made->size, text, strlen(text)) - made->text) + strlen(text);
}

static void make_template(Template *made, long topic_number, long queue) {
    char name[300], key[64];
    if (topics > 0) snprintf(name, sizeof name, "%s-%ld", topic, topic_number);
    else snprintf(name, sizeof name, "%s", topic);
    snprintf(key, sizeof key, "UNIQ_KEY\\u00017F000001%08lX18B4AAC2", (unsigned long)getpid());
    made->text = malloc(HEADER_ROOM);
    int header = snprintf((char *)made->text + 8, HEADER_ROOM - 8,
        "{\"code\":310,\"extFields\":{\"a\":\"wire-load\",\"b\":\"%s\",\"c\":\"TBW102\",\"d\":\"4\",\"e\":\"%ld\","
        "\"f\":\"0\",\"g\":\"%0*d\",\"h\":\"0\",\"i\":\"%s%0*d\\u0002WAIT\\u0001true\","
        "\"j\":\"0\",\"k\":\"false\",\"m\":\"false\"},\"flag\":0,\"language\":\"JAVA\",\"opaque\":%0*d,"
        "\"serializeTypeCurrentRPC\":\"JSON\",\"version\":493}",
        name, queue, BORN_DIGITS, 0, key, NUMBER_DIGITS, 0, OPAQUE_DIGITS, 0);
    made->size = put_sizes(made->text, header, (size_t)body_size) - (size_t)body_size;
    made->born = position_behind(made, "\"g\":\"");
    made->number = position_behind(made, key);
    made->opaque = position_behind(made, "\"opaque\":");
}

static void put_digits(uint8_t *out, uint64_t value, int digits, uint64_t base) {
    while (digits-- > 0) {
        out[digits] = (uint8_t)"0123456789ABCDEF"[value % base];
        value /= base;
    }
}

static int64_t wall_ms; /* of this turn */

static size_t make_frame(uint8_t *out, long opaque) {
    if (kind != SEND) return make_request(out, opaque);
    uint64_t number = next_message++, queue = number % (uint64_t)queues, topic_number = 0;
    if (topics > 0) {
        uint64_t chance = next_random() >> 11;
        queue = chance % (uint64_t)queues;
        topic_number = chance / (uint64_t)queues % (uint64_t)topics;
    }
    Template *template = templates + topic_number * (uint64_t)queues + queue;
    if (template->text == NULL) make_template(template, (long)topic_number, (long)queue);
    memcpy(out, template->text, template->size);
    put_digits(out + template->born, (uint64_t)wall_ms, BORN_DIGITS, 10);
    put_digits(out + template->number, number, NUMBER_DIGITS, 16);
    put_digits(out + template->opaque, (uint64_t)opaque + OPAQUE_FROM, OPAQUE_DIGITS, 10);
    memset(out + template->size, 'x', (size_t)body_size);
    return template->size + (size_t)body_size;
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

/* The text of a field of an answer. */
static const char *text_behind(const uint8_t *header, size_t size, const char *name) {
    const uint8_t *found = memmem(header, size, name, strlen(name));
    if (found == NULL) {
        fprintf(stderr, "an answer without %s: %.*s\n", name, (int)size, (const char *)header);
        exit(1);
    }
    return (const char *)found + strlen(name);
}

/* What an answer says: how many messages it stands for; notes what the slot asks next. */
static uint64_t take_answer(Slot *slot, long code, const uint8_t *header, size_t header_size, const uint8_t *body, size_t body_size_) {
    if (kind == PULL || kind == FOLLOW) {
        int64_t next = atoll(text_behind(header, header_size, "\"nextBeginOffset\":\""));
        int64_t end = atoll(text_behind(header, header_size, "\"maxOffset\":\""));
        slot->offset = kind == FOLLOW || (code == 0 && next < end) ? next : 0;
        slot->behind = end - next;
        uint64_t count = 0;
        for (size_t position = 0; code == 0 && position + 4 <= body_size_; count++) {
            uint32_t size;
            memcpy(&size, body + position, 4);
            position += ntohl(size);
        }
        if (count > 0) read_last = now_ns();
        return count;
    }
    if (kind != POP) return code == 0;
    if (slot->acked < slot->popped_count) {
        slot->acked++;
        return code == 0;
    }
    slot->acked = slot->popped_count = 0;
    if (code != 0) return 0;
    slot->pop_time = atoll(text_behind(header, header_size, "\"popTime\":\""));
    slot->revive = atoll(text_behind(header, header_size, "\"reviveQid\":\""));
    long queue;
    long long start, offset;
    int used;
    sscanf(text_behind(header, header_size, "\"startOffsetInfo\":\""), "%*s %ld %lld", &queue, &start);
    slot->start = start;
    const char *text = text_behind(header, header_size, "\"msgOffsetInfo\":\"");
    sscanf(text, "%*s %ld %n", &queue, &used);
    for (text += used; slot->popped_count < ASKED && sscanf(text, "%lld%n", &offset, &used) == 1; text += used + 1) {
        slot->popped[slot->popped_count++] = offset;
        if (text[used] != ',') break;
    }
    return 0;
}

static int is_ending;

/* With a rate: the slots that wait for their turn, oldest first. */
static double rate;
static long *waiting, waiting_first, waiting_count, waiting_room;

static void wait_for_turn(const Connection *connection, const long *slots, long count) {
    for (long n = 0; n < count; n++) {
        waiting[(waiting_first + waiting_count++) % waiting_room] = (long)(connection - connections) * outstanding + slots[n];
    }
}

/* Sends what has its turn. What could not be sent in time, since nothing was answered, is left out. */
static void take_turns(int64_t start) {
    static double sent;
    int64_t now = now_ns();
    double due = (double)(now - start) / 1e9 * rate;
    for (; sent + 1 <= due && waiting_count > 0; sent++) {
        long slot = waiting[waiting_first];
        waiting_first = (waiting_first + 1) % waiting_room;
        waiting_count--;
        long own = slot % outstanding;
        send_slots(connections + slot / outstanding, &own, 1, now);
    }
    if (sent + 1 <= due) sent = due;
}

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
        position += 4 + length;
        if (!(number_behind(header, header_size, "\"flag\":") & 1)) continue; /* a request of the broker */
        long opaque = number_behind(header, header_size, "\"opaque\":") - (kind == SEND ? OPAQUE_FROM : 0);
        long code = number_behind(header, header_size, "\"code\":");
        requests++;
        if (kind == SEND) acknowledged += code == 0;
        else acknowledged += take_answer(state + opaque, code, header, header_size, header + header_size, length - 4 - header_size);
        int is_empty = ((kind == PULL || kind == FOLLOW) && (code == 19 || code == 20 || code == 21)) || (kind == POP && (code == 209 || code == 210));
        if (code != 0 && !is_empty && refused++ == 0) fprintf(stderr, "refused: %.*s\n", (int)header_size, (const char *)header);
        if (sent_at[opaque] >= measure_from && measure_from) {
            buckets[bucket_of((uint64_t)(now - sent_at[opaque]))]++;
            measured++;
        }
        slots[count++] = opaque - base;
    }
    connection->held_size = size - position;
    memcpy(connection->held, buffer + position, connection->held_size);
    if (count == 0 || is_ending) return;
    if (rate > 0) wait_for_turn(connection, slots, count);
    else send_slots(connection, slots, count, now);
}

int main(int count, char **words) {
    if (count < 9) {
        fprintf(stderr, "usage: wire_load HOST PORT TOPIC CONNECTIONS OUTSTANDING BYTES WARM_S SECONDS [QUEUES [SENDERS [TOPICS [KIND [BROKER [RATE [GROUP]]]]]]]\n");
        return 2;
    }
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(words[2]))};
    if (inet_pton(AF_INET, words[1], &address.sin_addr) != 1) return 2;
    topic = words[3];
    long total = atol(words[4]);
    outstanding = atol(words[5]);
    body_size = atol(words[6]);
    double warm = atof(words[7]), seconds = atof(words[8]);
    if (total * outstanding > 9 * OPAQUE_FROM) {
        fprintf(stderr, "%ld requests on the way, allowed %d\n", total * outstanding, 9 * OPAQUE_FROM);
        return 2;
    }
    if (count > 9) queues = atol(words[9]);
    long senders = count > 10 && atol(words[10]) > 0 ? atol(words[10]) : total;
    if (count > 11) topics = atol(words[11]);
    static const char *const kinds[] = {"send", "pull", "follow", "pop", "commit", "heartbeat"};
    if (count > 12) {
        while (kind <= HEARTBEAT && strcmp(words[12], kinds[kind])) kind++;
        if (kind > HEARTBEAT) {
            fprintf(stderr, "kind %s, allowed send, pull, follow, pop, commit, heartbeat\n", words[12]);
            return 2;
        }
    }
    if (count > 13) broker = words[13];
    if (count > 14) rate = atof(words[14]);
    if (count > 15) group = words[15];
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    frame_room = (size_t)(HEADER_ROOM + 8 + body_size);
    frame_memory = malloc(frame_room * (size_t)outstanding);
    connections = calloc((size_t)total, sizeof *connections);
    sent_at = calloc((size_t)(total * outstanding), sizeof *sent_at);
    state = calloc((size_t)(total * outstanding), sizeof *state);
    for (long n = 0; n < total * outstanding; n++) state[n].queue = n % queues;
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
    templates = calloc((size_t)(queues * (topics > 0 ? topics : 1)), sizeof *templates);
    wall_ms = (int64_t)time(NULL) * 1000;
    for (long n = 0; n < outstanding; n++) slots[n] = n;
    waiting_room = total * outstanding;
    waiting = malloc(sizeof *waiting * (size_t)waiting_room);
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    if (rate > 0) {
        struct itimerspec each_ms = {{0, 1000000}, {0, 1000000}};
        timerfd_settime(timer, 0, &each_ms, NULL);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
        epoll_ctl(epoll_fd, EPOLL_CTL_ADD, timer, &event);
    }
    int64_t start = now_ns();
    for (long n = 0; n < senders; n++) {
        if (rate > 0) wait_for_turn(connections + n, slots, outstanding);
        else send_slots(connections + n, slots, outstanding, now_ns());
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
        wall_ms = (int64_t)time(NULL) * 1000;
        for (int n = 0; n < ready; n++) {
            Connection *connection = events[n].data.ptr;
            if (connection == NULL) {
                uint64_t ticks;
                if (read(timer, &ticks, sizeof ticks) > 0) take_turns(start);
                continue;
            }
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
    double took = (double)((kind == FOLLOW && read_last > began ? read_last : now_ns()) - began) / 1e9;
    uint64_t counted = acknowledged - before;
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    int64_t behind = 0;
    for (long n = 0; n < senders * outstanding; n++) behind += state[n].behind;
    printf("{\"ok\": %llu, \"refused\": %llu, \"per_s\": %.0f, \"total\": %llu, \"requests\": %llu, \"p50_us\": %.1f, \"p99_us\": %.1f, \"p999_us\": %.1f, \"max_us\": %.1f, \"behind\": %lld, \"own_cpu_s\": %.2f}\n",
           (unsigned long long)counted, (unsigned long long)refused, (double)counted / took,
           (unsigned long long)acknowledged, (unsigned long long)requests, percentile(0.5), percentile(0.99),
           percentile(0.999), percentile(0.9999999), (long long)behind,
           (double)usage.ru_utime.tv_sec + (double)usage.ru_utime.tv_usec / 1e6 + (double)usage.ru_stime.tv_sec + (double)usage.ru_stime.tv_usec / 1e6);
    return 0;
}
