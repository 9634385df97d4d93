/* Paced upstream: answers POST with a valid chat stream, one text chunk every GAP ms, or with a whole reply if the
 * request wants no stream, and everything else with a list of models.
 *
 * The role and the first text are sent at once; "max_tokens" of the request is the number of texts. Each chunk is one
 * write, so that chunks are not coalesced here. With a gap of 0 it writes as fast as the client reads. Stamped texts
 * are the time at which they are sent, in ns of the monotonic clock. Prints its port; exits when standard input closes.
 *
 *     upstream GAP_MS [stamped]
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define REQUEST_BYTES 16384 /* a request has a few hundred bytes, more if a gateway adds headers */
#define UNSENT_BYTES 4096 /* the longest write, the end of a stream, has 1 KB */
#define EVENTS 256
#define WORDS 8

#define CHUNK(delta, finish)                                                                                          \
    "data: {\"id\":\"chatcmpl-7e57ab1e7e57ab1e7e57ab1e7e57ab1e\",\"object\":\"chat.completion.chunk\","               \
    "\"created\":1700000000,\"model\":\"paced\",\"choices\":[{\"index\":0,\"delta\":{" delta                          \
    "},\"logprobs\":null,\"finish_reason\":" finish "}]}\n\n"
#define USAGE                                                                                                         \
    "data: {\"id\":\"chatcmpl-7e57ab1e7e57ab1e7e57ab1e7e57ab1e\",\"object\":\"chat.completion.chunk\","               \
    "\"created\":1700000000,\"model\":\"paced\",\"choices\":[],"                                                      \
    "\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":%ld,\"total_tokens\":%ld}}\n\n"
#define STREAM_HEAD                                                                                                   \
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"                               \
    "Transfer-Encoding: chunked\r\n\r\n"
#define JSON_HEAD "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n"
#define REPLY                                                                                                         \
    "{\"id\":\"chatcmpl-7e57ab1e7e57ab1e7e57ab1e7e57ab1e\",\"object\":\"chat.completion\",\"created\":1700000000,"      \
    "\"model\":\"paced\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"well done\","          \
    "\"refusal\":null},\"logprobs\":null,\"finish_reason\":\"stop\"}],"                                               \
    "\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":2,\"total_tokens\":11}}"
#define MODELS "{\"object\":\"list\",\"data\":[{\"id\":\"paced\",\"object\":\"model\",\"owned_by\":\"benchmark\"}]}"

struct stream {
    int fd;             /* -1: the client has disconnected */
    int is_queued;     /* it is in the queue */
    int wants_usage;
    long texts, left;   /* left: -1 after the end was sent */
    int64_t due;        /* time of its next text, ns */
    struct stream *next;
    size_t unsent;      /* bytes that did not fit into the socket buffer */
    char rest[UNSENT_BYTES];
    size_t have;
    char request[REQUEST_BYTES];
};

/* Queue ordered by due time: all streams have the same gap, so a stream that was just sent goes to the end. */
static struct stream *first, *last;
static int64_t gap;
static int is_stamped, poll;
static const char *words[WORDS] = {" well", " done", " soup", " salt", " herb", " stew", " slow", " warm"};
static char texts[WORDS][1024];

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

/* One chunk of the chunked transfer coding (RFC 9112, section 7.1). */
static int chunked(char *out, size_t size, const char *data) {
    return snprintf(out, size, "%zx\r\n%s\r\n", strlen(data), data);
}

static void drop(struct stream *stream) {
    if (stream->fd >= 0) close(stream->fd);
    stream->fd = -1;
    if (!stream->is_queued) free(stream);
}

static int watch(struct stream *stream, int how, uint32_t events) {
    struct epoll_event event = {.events = events, .data.ptr = stream};
    return epoll_ctl(poll, how, stream->fd, &event) == 0;
}

/* A paced reply that does not fit into the socket buffer fails: the client has stopped reading. Without a gap the
 * buffer is always full, and the rest is sent later. */
static int send_all(struct stream *stream, const char *data, size_t size) {
    ssize_t sent = send(stream->fd, data, size, MSG_NOSIGNAL);
    if (sent == (ssize_t)size) return 1;
    if (gap > 0 || stream->unsent > 0 || (sent < 0 && errno != EAGAIN)) return 0;
    if (sent < 0) sent = 0;
    stream->unsent = size - sent;
    memcpy(stream->rest, data + sent, stream->unsent);
    return watch(stream, EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT);
}

static void enqueue(struct stream *stream) {
    stream->is_queued = 1;
    stream->next = NULL;
    if (last != NULL) last->next = stream;
    else first = stream;
    last = stream;
}

static int send_text(struct stream *stream) {
    const char *text = texts[stream->left-- % WORDS];
    char stamped[512], out[1024];
    if (is_stamped) {
        snprintf(stamped, sizeof stamped, CHUNK("\"content\":\" %lld\"", "null"), (long long)now());
        chunked(out, sizeof out, stamped);
        text = out;
    }
    return send_all(stream, text, strlen(text));
}

static int send_end(struct stream *stream) {
    char usage[512], part[1024], out[4096];
    int size = chunked(out, sizeof out, CHUNK("", "\"stop\""));
    stream->left = -1;
    if (stream->wants_usage) {
        snprintf(usage, sizeof usage, USAGE, stream->texts, stream->texts + 9);
        chunked(part, sizeof part, usage);
        size += snprintf(out + size, sizeof out - size, "%s", part);
    }
    chunked(part, sizeof part, "data: [DONE]\n\n");
    size += snprintf(out + size, sizeof out - size, "%s0\r\n\r\n", part);
    return send_all(stream, out, size);
}

/* Sends the next text, or the end. 0: the connection is lost. */
static int send_next(struct stream *stream) {
    if (stream->left == 0) return send_end(stream);
    if (!send_text(stream)) return 0;
    if (stream->unsent == 0) enqueue(stream);
    return 1;
}

/* The socket is writable again: send the rest. */
static void send_rest(struct stream *stream) {
    ssize_t sent = send(stream->fd, stream->rest, stream->unsent, MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN) { drop(stream); return; }
    if (sent <= 0) return;
    stream->unsent -= sent;
    memmove(stream->rest, stream->rest + sent, stream->unsent);
    if (stream->unsent > 0) return;
    if (!watch(stream, EPOLL_CTL_MOD, EPOLLIN)) drop(stream);
    else if (stream->left >= 0) enqueue(stream);
}

static void send_due(void) {
    int64_t time = now();
    while (first != NULL && first->due <= time) {
        struct stream *stream = first;
        first = stream->next;
        if (first == NULL) last = NULL;
        stream->is_queued = 0;
        stream->due = gap > 0 ? stream->due + gap : time + 1; /* one text each, then poll for requests */
        if (stream->fd < 0 || !send_next(stream)) drop(stream);
    }
}

/* "max_tokens", which some gateways rename to "max_completion_tokens". */
static long limit_of(const char *body) {
    const char *key = "_tokens\":";
    while ((body = strstr(body, key)) != NULL) {
        long limit = strtol(body += strlen(key), NULL, 10);
        if (limit > 0) return limit;
    }
    return WORDS;
}

static int begin_stream(struct stream *stream, const char *body) {
    char out[2048];
    stream->texts = stream->left = limit_of(body);
    stream->wants_usage = strstr(body, "include_usage") != NULL;
    int size = snprintf(out, sizeof out, "%s", STREAM_HEAD);
    size += chunked(out + size, sizeof out - size, CHUNK("\"role\":\"assistant\",\"content\":\"\"", "null"));
    stream->due = now() + gap;
    return send_all(stream, out, size) && send_next(stream);
}

static int send_json(struct stream *stream, const char *json) {
    char out[1024];
    int size = snprintf(out, sizeof out, JSON_HEAD "%s", strlen(json), json);
    return send_all(stream, out, size);
}

/* Answers the request if it is complete. 0: close the connection. */
static int answer(struct stream *stream) {
    stream->request[stream->have] = 0;
    char *body = strstr(stream->request, "\r\n\r\n");
    if (body == NULL) return stream->have < REQUEST_BYTES - 1;
    body += 4;
    char *length = strcasestr(stream->request, "\r\ncontent-length:");
    size_t size = length != NULL && length < body ? strtoul(length + 17, NULL, 10) : 0;
    if (stream->have < (size_t)(body - stream->request) + size) return stream->have < REQUEST_BYTES - 1;
    stream->have = 0;
    if (strncmp(stream->request, "POST ", 5) != 0) return send_json(stream, MODELS);
    int is_stream = strstr(body, "\"stream\":true") != NULL || strstr(body, "\"stream\": true") != NULL;
    return is_stream ? begin_stream(stream, body) : send_json(stream, REPLY);
}

static void read_request(struct stream *stream) {
    ssize_t size = recv(stream->fd, stream->request + stream->have, REQUEST_BYTES - 1 - stream->have, 0);
    if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (size <= 0) { drop(stream); return; }
    stream->have += size;
    if (stream->is_queued || !answer(stream)) drop(stream); /* pipelining is not supported */
}

static void accept_all(int listener) {
    int fd, yes = 1;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        struct stream *stream = calloc(1, sizeof *stream);
        if (stream == NULL) abort();
        stream->fd = fd;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        if (!watch(stream, EPOLL_CTL_ADD, EPOLLIN)) abort();
    }
}

static int start_listening(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, size) < 0 || listen(listener, 4096) < 0 ||
        getsockname(listener, (struct sockaddr *)&address, &size) < 0) {
        perror("upstream");
        exit(1);
    }
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    return listener;
}

static struct timespec time_to_next(void) {
    int64_t left = first != NULL ? first->due - now() : 1000000000LL;
    if (left < 0) left = 0;
    return (struct timespec){.tv_sec = left / 1000000000LL, .tv_nsec = left % 1000000000LL};
}

int main(int count, char **arguments) {
    if (count < 2) return 2;
    is_stamped = count > 2;
    gap = (int64_t)(atof(arguments[1]) * 1e6);
    for (int i = 0; i < WORDS; i++) {
        char text[512];
        snprintf(text, sizeof text, CHUNK("\"content\":\"%s\"", "null"), words[i]);
        chunked(texts[i], sizeof texts[i], text);
    }
    int listener = start_listening();
    poll = epoll_create1(0);
    struct epoll_event events[EVENTS];
    struct epoll_event input = {.events = EPOLLIN, .data.ptr = &gap};
    struct epoll_event accepting = {.events = EPOLLIN, .data.ptr = &first};
    epoll_ctl(poll, EPOLL_CTL_ADD, listener, &accepting);
    epoll_ctl(poll, EPOLL_CTL_ADD, 0, &input);
    for (;;) {
        struct timespec pause = time_to_next();
        int ready = epoll_pwait2(poll, events, EVENTS, &pause, NULL);
        for (int i = 0; i < ready; i++) {
            if (events[i].data.ptr == &gap) return 0;
            if (events[i].data.ptr == &first) accept_all(listener);
            else if (events[i].events & ~EPOLLOUT) read_request(events[i].data.ptr);
            else send_rest(events[i].data.ptr);
        }
        send_due();
    }
}
