// Scenarios through the Go client v2 against any broker: gosuite -namesrv HOST:PORT [scenario ...].
// One line of JSON per scenario: scenario, ok, ms, detail, counts, observed.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

var (
	namesrv  = flag.String("namesrv", "", "host:port of a name server")
	timeout  = flag.Duration("timeout", 90*time.Second, "of each scenario")
	parallel = flag.Int("parallel", 4, "scenarios at a time")
	asLedger = flag.Bool("ledger", false, "every kind of traffic until a line on stdin, then a ledger")
	asSide   = flag.String("exchange", "", "send or consume: one side of an exchange, see exchange.go")
	serial   int64
)

type scenario struct {
	name string
	run  func(c *run)
}

var scenarios = []scenario{
	{"go-send-sync", sendSync},
	{"go-send-async", sendAsync},
	{"go-send-oneway", sendOneway},
	{"go-send-batch", sendBatch},
	{"go-send-selector", sendSelector},
	{"go-send-compressed", sendCompressed},
	{"go-delay-level", delayLevel},
	{"go-transaction", transaction},
	{"go-request-reply", requestReply},
	{"go-push-concurrent", pushConcurrent},
	{"go-push-orderly", pushOrderly},
	{"go-push-broadcast", pushBroadcast},
	{"go-push-tags", pushTags},
	{"go-push-sql92", pushSQL92},
	{"go-retry", retry},
	{"go-offsets-resume", offsetsResume},
	{"go-pull", pull},
}

type failure string

// run is one run of one scenario.
type run struct {
	prefix   string
	counts   map[string]any
	observed map[string]string
	mu       sync.Mutex
	closers  []func()
}

func (c *run) check(holds bool, format string, args ...any) {
	if !holds {
		panic(failure(fmt.Sprintf(format, args...)))
	}
}

func (c *run) ok(err error) {
	if err != nil {
		panic(failure(err.Error()))
	}
}

func (c *run) name(what string) string { return c.prefix + "_" + what }

func (c *run) observe(what string, value any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.observed[what] = fmt.Sprint(value)
}

func (c *run) onClose(closer func()) { c.closers = append(c.closers, closer) }

func (c *run) close() {
	for n := len(c.closers) - 1; n >= 0; n-- {
		func() {
			defer func() {
				if r := recover(); r != nil {
					fmt.Fprintln(os.Stderr, "closing:", r)
				}
			}()
			c.closers[n]()
		}()
	}
}

func (c *run) await(d time.Duration, what string, condition func() bool) {
	deadline := time.Now().Add(d)
	for !condition() {
		c.check(time.Now().Before(deadline), "not within %v: %s", d, what)
		time.Sleep(20 * time.Millisecond)
	}
}

func instance() string { return "go" + strconv.FormatInt(atomic.AddInt64(&serial, 1), 10) }

func resolver() primitive.NsResolver {
	return primitive.NewPassthroughResolver([]string{*namesrv})
}

func (c *run) producer(options ...producer.Option) rocketmq.Producer {
	p, err := rocketmq.NewProducer(append([]producer.Option{
		producer.WithNsResolver(resolver()), producer.WithRetry(2), producer.WithGroupName(c.name("P")),
		producer.WithInstanceName(instance()), producer.WithSendMsgTimeout(5 * time.Second)}, options...)...)
	c.ok(err)
	c.ok(p.Start())
	c.onClose(func() { _ = p.Shutdown() })
	return p
}

// topic exists when this returns, with the message of id "warm" in it.
func (c *run) topic(p rocketmq.Producer) string {
	name := c.name("T")
	m := primitive.NewMessage(name, []byte("warm")).WithTag("warm")
	m.WithProperty("i", "warm")
	var err error
	for n := 0; n < 3; n++ { // the first of a new client can find no route under load
		if _, err = p.SendSync(context.Background(), m); err == nil {
			// Brokers tell the name server after they have acknowledged; a consumer wants the route at once.
			time.Sleep(300 * time.Millisecond)
			return name
		}
	}
	c.ok(err)
	return name
}

func message(topic, tag string, i int) *primitive.Message {
	m := primitive.NewMessage(topic, []byte(fmt.Sprintf("body %d \u00fc\u4e2d", i)))
	m.WithKeys([]string{"k" + strconv.Itoa(i)})
	if tag != "" {
		m.WithTag(tag)
	}
	m.WithProperty("i", strconv.Itoa(i))
	return m
}

func (c *run) sendAll(p rocketmq.Producer, topic, tag string, from, to int) {
	for i := from; i < to; i++ {
		r, err := p.SendSync(context.Background(), message(topic, tag, i))
		c.ok(err)
		c.check(r.Status == primitive.SendOK, "status %v", r.Status)
	}
}

// sink keeps what listeners were given.
type sink struct {
	mu       sync.Mutex
	messages []*primitive.MessageExt
	times    []time.Time
}

func (s *sink) add(messages ...*primitive.MessageExt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range messages {
		if m.GetProperty("i") == "warm" {
			continue
		}
		s.messages = append(s.messages, m)
		s.times = append(s.times, time.Now())
	}
}

func (s *sink) listen(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
	s.add(messages...)
	return consumer.ConsumeSuccess, nil
}

func (s *sink) all() []*primitive.MessageExt {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*primitive.MessageExt(nil), s.messages...)
}

func (s *sink) ids() map[string]int {
	found := map[string]int{}
	for _, m := range s.all() {
		found[m.GetProperty("i")]++
	}
	return found
}

func ids(from, to int) map[string]int {
	wanted := map[string]int{}
	for i := from; i < to; i++ {
		wanted[strconv.Itoa(i)] = 1
	}
	return wanted
}

func missing(wanted, found map[string]int) []string {
	var none []string
	for id := range wanted {
		if found[id] == 0 {
			none = append(none, id)
		}
	}
	sort.Strings(none)
	return none
}

func (c *run) awaitIDs(s *sink, d time.Duration, wanted map[string]int) {
	deadline := time.Now().Add(d)
	for {
		none := missing(wanted, s.ids())
		if len(none) == 0 {
			return
		}
		c.check(time.Now().Before(deadline), "not within %v: %d of %d ids, such as %s", d, len(none), len(wanted), none[0])
		time.Sleep(20 * time.Millisecond)
	}
}

func (c *run) exactly(s *sink, wanted map[string]int) {
	for id, times := range s.ids() {
		c.check(wanted[id] > 0, "%s was consumed and is not among the wanted", id)
		c.check(times == 1, "%s was consumed %d times", id, times)
	}
}

func everything() consumer.MessageSelector {
	return consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}
}

func (c *run) push(group, topic string, selector consumer.MessageSelector, listener func(context.Context, ...*primitive.MessageExt) (consumer.ConsumeResult, error), options ...consumer.Option) rocketmq.PushConsumer {
	p, err := rocketmq.NewPushConsumer(append([]consumer.Option{
		consumer.WithNsResolver(resolver()), consumer.WithGroupName(group), consumer.WithInstance(instance()),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset)}, options...)...)
	c.ok(err)
	c.ok(p.Subscribe(topic, selector, listener))
	c.ok(p.Start())
	c.onClose(func() { _ = p.Shutdown() })
	return p
}

func propertyNames(m *primitive.MessageExt) string {
	var names []string
	for name := range m.GetProperties() {
		names = append(names, name)
	}
	sort.Strings(names)
	return strings.Join(names, " ")
}

// readBack consumes the whole topic with a group of its own.
func (c *run) readBack(topic string, wanted map[string]int) *sink {
	s := &sink{}
	c.push(c.name("read"), topic, everything(), s.listen)
	c.awaitIDs(s, 40*time.Second, wanted)
	c.exactly(s, wanted)
	return s
}

// ---- sending

func sendSync(c *run) {
	p := c.producer()
	topic := c.topic(p)
	seen := map[string]bool{}
	for i := 0; i < 100; i++ {
		r, err := p.SendSync(context.Background(), message(topic, "t", i))
		c.ok(err)
		c.check(r.Status == primitive.SendOK, "status %v", r.Status)
		c.check(!seen[r.MsgID], "id %s twice", r.MsgID)
		seen[r.MsgID] = true
		c.check(len(r.OffsetMsgID) == 32, "offset id %q", r.OffsetMsgID)
		c.observe("regionId", r.RegionID)
	}
	s := c.readBack(topic, ids(0, 100))
	for _, m := range s.all() {
		i, _ := strconv.Atoi(m.GetProperty("i"))
		c.check(string(m.Body) == fmt.Sprintf("body %d \u00fc\u4e2d", i), "body of %d: %q", i, m.Body)
		c.check(m.GetTags() == "t" && m.GetKeys() == "k"+strconv.Itoa(i), "tags %q, keys %q", m.GetTags(), m.GetKeys())
		c.check(seen[m.MsgId], "id %s was not acknowledged", m.MsgId)
		c.observe("properties", propertyNames(m))
	}
}

func sendAsync(c *run) {
	p := c.producer()
	topic := c.topic(p)
	var wait sync.WaitGroup
	var bad atomic.Value
	for i := 0; i < 300; i++ {
		wait.Add(1)
		c.ok(p.SendAsync(context.Background(), func(_ context.Context, _ *primitive.SendResult, err error) {
			if err != nil {
				bad.Store(err.Error())
			}
			wait.Done()
		}, message(topic, "", i)))
	}
	wait.Wait()
	c.check(bad.Load() == nil, "%v", bad.Load())
	c.readBack(topic, ids(0, 300))
}

func sendOneway(c *run) {
	p := c.producer()
	topic := c.topic(p)
	for i := 0; i < 100; i++ {
		c.ok(p.SendOneWay(context.Background(), message(topic, "", i)))
	}
	c.readBack(topic, ids(0, 100))
}

func sendBatch(c *run) {
	p := c.producer()
	topic := c.topic(p)
	for b := 0; b < 5; b++ {
		var batch []*primitive.Message
		for i := 0; i < 20; i++ {
			batch = append(batch, message(topic, "t", b*20+i))
		}
		r, err := p.SendSync(context.Background(), batch...)
		c.ok(err)
		c.check(r.Status == primitive.SendOK, "status %v", r.Status)
	}
	s := c.readBack(topic, ids(0, 100))
	queue := map[int]int{}
	for _, m := range s.all() {
		i, _ := strconv.Atoi(m.GetProperty("i"))
		if q, known := queue[i/20]; known {
			c.check(q == m.Queue.QueueId, "batch %d is in two queues", i/20)
		}
		queue[i/20] = m.Queue.QueueId
	}
}

func sendSelector(c *run) {
	p := c.producer(producer.WithQueueSelector(producer.NewHashQueueSelector()))
	topic := c.topic(p)
	queue := map[string]int{}
	for i := 0; i < 80; i++ {
		key := "order-" + strconv.Itoa(i%10)
		r, err := p.SendSync(context.Background(), message(topic, "", i).WithShardingKey(key))
		c.ok(err)
		if q, known := queue[key]; known {
			c.check(q == r.MessageQueue.QueueId, "%s in queues %d and %d", key, q, r.MessageQueue.QueueId)
		}
		queue[key] = r.MessageQueue.QueueId
	}
	c.readBack(topic, ids(0, 80))
}

func sendCompressed(c *run) {
	p := c.producer()
	topic := c.topic(p)
	body := strings.Repeat("all work and no play ", 10_000)
	m := primitive.NewMessage(topic, []byte(body))
	m.WithProperty("i", "0")
	_, err := p.SendSync(context.Background(), m)
	c.ok(err)
	s := c.readBack(topic, ids(0, 1))
	got := s.all()[0]
	c.check(string(got.Body) == body, "body of %d bytes came back as %d", len(body), len(got.Body))
	c.check(int(got.StoreSize) < len(body)/10, "stored in %d bytes", got.StoreSize)
}

func delayLevel(c *run) {
	p := c.producer()
	topic := c.topic(p)
	s := &sink{}
	c.push(c.name("G"), topic, everything(), s.listen)
	sent := map[string]time.Time{}
	for i := 0; i < 20; i++ {
		sent[strconv.Itoa(i)] = time.Now()
		_, err := p.SendSync(context.Background(), message(topic, "", i).WithDelayTimeLevel(1+i%2))
		c.ok(err)
	}
	c.awaitIDs(s, 40*time.Second, ids(0, 20))
	for _, m := range s.all() {
		c.observe("properties", propertyNames(m))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for n, m := range s.messages {
		i, _ := strconv.Atoi(m.GetProperty("i"))
		after := s.times[n].Sub(sent[m.GetProperty("i")])
		due := []time.Duration{time.Second, 5 * time.Second}[i%2]
		c.check(after > due-50*time.Millisecond, "%d of level %d came after %v", i, 1+i%2, after)
	}
}

type listener struct {
	mu     sync.Mutex
	checks map[string]int
}

func state(name string) primitive.LocalTransactionState {
	switch name {
	case "commit":
		return primitive.CommitMessageState
	case "rollback":
		return primitive.RollbackMessageState
	}
	return primitive.UnknowState
}

func (l *listener) ExecuteLocalTransaction(m *primitive.Message) primitive.LocalTransactionState {
	return state(m.GetProperty("first"))
}

func (l *listener) CheckLocalTransaction(m *primitive.MessageExt) primitive.LocalTransactionState {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.checks[m.GetProperty("i")]++
	return state(m.GetProperty("then"))
}

func transaction(c *run) {
	topic := c.topic(c.producer())
	l := &listener{checks: map[string]int{}}
	p, err := rocketmq.NewTransactionProducer(l, producer.WithNsResolver(resolver()), producer.WithGroupName(c.name("TP")),
		producer.WithInstanceName(instance()), producer.WithRetry(1))
	c.ok(err)
	c.ok(p.Start())
	c.onClose(func() { _ = p.Shutdown() })
	s := &sink{}
	c.push(c.name("G"), topic, everything(), s.listen)
	kinds := [][2]string{{"commit", ""}, {"rollback", ""}, {"unknown", "commit"}, {"unknown", "rollback"}}
	committed, unknown := map[string]int{}, map[string]int{}
	for i := 0; i < 20; i++ {
		m := message(topic, "t", i)
		m.WithProperty("first", kinds[i%4][0])
		m.WithProperty("then", kinds[i%4][1])
		r, err := p.SendMessageInTransaction(context.Background(), m)
		c.ok(err)
		c.check(r.Status == primitive.SendOK, "status %v", r.Status)
		if i%4 == 0 || i%4 == 2 {
			committed[strconv.Itoa(i)] = 1
		}
		if i%4 >= 2 {
			unknown[strconv.Itoa(i)] = 1
		}
	}
	c.awaitIDs(s, 60*time.Second, committed)
	c.await(30*time.Second, "check-back of all unknown", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(missing(unknown, l.checks)) == 0
	})
	c.exactly(s, committed)
}

func requestReply(c *run) {
	asking := c.producer()
	answering := c.producer(producer.WithGroupName(c.name("A")))
	topic := c.topic(answering)
	c.push(c.name("G"), topic, everything(), func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, m := range messages {
			if m.GetProperty("i") == "warm" {
				continue
			}
			reply, err := consumer.CreateReplyMessage(m, []byte("re: "+m.GetProperty("i")))
			if err == nil {
				reply.Body = []byte("re: " + m.GetProperty("i")) // v2.1.2 forgets it
				_, err = answering.SendSync(context.Background(), reply)
			}
			if err != nil {
				fmt.Fprintln(os.Stderr, "replying:", err)
				return consumer.ConsumeRetryLater, err
			}
		}
		return consumer.ConsumeSuccess, nil
	})
	// The broker can push a reply only after the asking client's first heartbeat, which has its own clock.
	c.await(60*time.Second, "a first reply", func() bool {
		_, err := asking.Request(context.Background(), 2*time.Second, message(topic, "t", 99))
		return err == nil
	})
	for i := 0; i < 10; i++ {
		m, err := asking.Request(context.Background(), 20*time.Second, message(topic, "t", i))
		c.ok(err)
		c.check(string(m.Body) == fmt.Sprintf("re: %d", i), "reply %q", m.Body)
	}
}

// ---- consuming

func pushConcurrent(c *run) {
	p := c.producer()
	topic := c.topic(p)
	c.sendAll(p, topic, "t", 0, 100)
	both, own := &sink{}, []*sink{{}, {}}
	for n := 0; n < 2; n++ {
		mine := own[n]
		c.push(c.name("G"), topic, everything(), func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			mine.add(messages...)
			both.add(messages...)
			return consumer.ConsumeSuccess, nil
		})
	}
	c.awaitIDs(both, 40*time.Second, ids(0, 100))
	// Once both have queues, each gets a share.
	next := 100
	c.await(60*time.Second, "both members get messages", func() bool {
		c.sendAll(p, topic, "t", next, next+8)
		next += 8
		time.Sleep(200 * time.Millisecond)
		return len(own[0].all()) > 0 && len(own[1].all()) > 0
	})
	c.awaitIDs(both, 40*time.Second, ids(0, next))
}

func pushOrderly(c *run) {
	p := c.producer(producer.WithQueueSelector(producer.NewHashQueueSelector()))
	topic := c.topic(p)
	s := &sink{}
	var once sync.Once
	c.push(c.name("G"), topic, everything(), func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		result := consumer.ConsumeSuccess
		once.Do(func() { result = consumer.SuspendCurrentQueueAMoment })
		if result == consumer.ConsumeSuccess {
			s.add(messages...)
		}
		return result, nil
	}, consumer.WithConsumerOrder(true))
	for i := 0; i < 200; i++ {
		_, err := p.SendSync(context.Background(), message(topic, "", i).WithShardingKey(strconv.Itoa(i%16)))
		c.ok(err)
	}
	c.awaitIDs(s, 60*time.Second, ids(0, 200))
	last := map[int]int{}
	for _, m := range s.all() {
		i, _ := strconv.Atoi(m.GetProperty("i"))
		before, known := last[i%16]
		c.check(!known || before <= i, "order %d: %d after %d", i%16, i, before)
		last[i%16] = i
	}
}

func pushBroadcast(c *run) {
	p := c.producer()
	topic := c.topic(p)
	own := []*sink{{}, {}}
	for n := 0; n < 2; n++ {
		c.push(c.name("G"), topic, everything(), own[n].listen, consumer.WithConsumerModel(consumer.BroadCasting))
	}
	time.Sleep(2 * time.Second) // a broadcasting member begins at the end of each queue
	next := 0
	c.await(60*time.Second, "every queue of both is read", func() bool {
		c.sendAll(p, topic, "", next, next+8)
		next += 8
		time.Sleep(300 * time.Millisecond)
		return len(missing(ids(next-8, next), own[0].ids())) == 0 && len(missing(ids(next-8, next), own[1].ids())) == 0
	})
	c.sendAll(p, topic, "", 10_000, 10_050)
	for _, s := range own {
		c.awaitIDs(s, 30*time.Second, ids(10_000, 10_050))
	}
}

func pushTags(c *run) {
	p := c.producer()
	topic := c.topic(p)
	s := &sink{}
	c.push(c.name("G"), topic, consumer.MessageSelector{Type: consumer.TAG, Expression: "red || AaAa"}, s.listen)
	wanted := map[string]int{}
	for i := 0; i < 100; i++ {
		tag := []string{"red", "green", "AaAa", "BBBB", ""}[i%5]
		c.sendAll(p, topic, tag, i, i+1)
		if i%5 == 0 || i%5 == 2 {
			wanted[strconv.Itoa(i)] = 1
		}
	}
	c.awaitIDs(s, 40*time.Second, wanted)
	c.exactly(s, wanted)
}

func pushSQL92(c *run) {
	p := c.producer()
	topic := c.topic(p)
	s := &sink{}
	c.push(c.name("G"), topic, consumer.MessageSelector{Type: consumer.SQL92, Expression: "n BETWEEN 10 AND 19 OR colour = 'red'"}, s.listen)
	wanted := map[string]int{}
	for i := 0; i < 60; i++ {
		m := message(topic, "", i)
		m.WithProperty("n", strconv.Itoa(i))
		m.WithProperty("colour", []string{"red", "green", "blue"}[i%3])
		_, err := p.SendSync(context.Background(), m)
		c.ok(err)
		if i >= 10 && i <= 19 || i%3 == 0 {
			wanted[strconv.Itoa(i)] = 1
		}
	}
	c.awaitIDs(s, 60*time.Second, wanted)
	c.exactly(s, wanted)
}

func retry(c *run) {
	p := c.producer()
	topic := c.topic(p)
	good := &sink{}
	var attempts sync.Map
	c.push(c.name("G"), topic, everything(), func(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		id := messages[0].GetProperty("i")
		n, _ := attempts.LoadOrStore(id, new(int32))
		if atomic.AddInt32(n.(*int32), 1) == 1 && id != "warm" {
			if concurrent, ok := primitive.GetConcurrentlyCtx(ctx); ok {
				concurrent.DelayLevelWhenNextConsume = 1
			}
			return consumer.ConsumeRetryLater, nil
		}
		good.add(messages...)
		return consumer.ConsumeSuccess, nil
	}, consumer.WithMaxReconsumeTimes(3))
	c.sendAll(p, topic, "t", 0, 10)
	c.awaitIDs(good, 80*time.Second, ids(0, 10))
	for _, m := range good.all() {
		c.observe("reconsumeTimes", m.ReconsumeTimes)
		c.observe("properties", propertyNames(m))
	}
}

func offsetsResume(c *run) {
	p := c.producer()
	topic := c.topic(p)
	for round := 0; round < 2; round++ {
		c.sendAll(p, topic, "", round*30, round*30+30)
		s := &sink{}
		member := c.push(c.name("G"), topic, everything(), s.listen)
		c.awaitIDs(s, 40*time.Second, ids(round*30, round*30+30))
		time.Sleep(300 * time.Millisecond) // the listener has returned
		c.ok(member.Shutdown())
		c.exactly(s, ids(round*30, round*30+30))
	}
}

func pull(c *run) {
	p := c.producer()
	topic := c.topic(p)
	c.sendAll(p, topic, "t", 0, 60)
	member, err := rocketmq.NewPullConsumer(consumer.WithNsResolver(resolver()), consumer.WithGroupName(c.name("G")),
		consumer.WithInstance(instance()), consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	c.ok(err)
	c.ok(member.Subscribe(topic, everything()))
	c.ok(member.Start())
	c.onClose(func() { _ = member.Shutdown() })
	s := &sink{}
	c.await(60*time.Second, "60 messages polled", func() bool {
		request, err := member.Poll(context.Background(), time.Second)
		if err == nil {
			s.add(request.GetMsgList()...)
			member.ACK(context.Background(), request, consumer.ConsumeSuccess)
		}
		return len(missing(ids(0, 60), s.ids())) == 0
	})
	c.exactly(s, ids(0, 60))
}

// ---- running

func one(sc scenario, prefix string) map[string]any {
	c := &run{prefix: strings.ReplaceAll(sc.name, "-", "_") + "_" + prefix, counts: map[string]any{}, observed: map[string]string{}}
	begin := time.Now()
	done := make(chan string, 1)
	go func() {
		defer func() {
			if r := recover(); r != nil {
				done <- fmt.Sprint(r)
				return
			}
			done <- ""
		}()
		sc.run(c)
	}()
	detail := ""
	select {
	case detail = <-done:
	case <-time.After(*timeout):
		detail = fmt.Sprintf("not done after %v", *timeout)
	}
	c.mu.Lock()
	line := map[string]any{"scenario": sc.name, "ok": detail == "", "ms": time.Since(begin).Milliseconds(), "detail": detail,
		"counts": c.counts, "observed": c.observed}
	text, _ := json.Marshal(line)
	c.mu.Unlock()
	fmt.Println(string(text))
	closed := make(chan bool)
	go func() { c.close(); close(closed) }()
	select {
	case <-closed:
	case <-time.After(20 * time.Second):
	}
	return line
}

func main() {
	flag.Parse()
	level := os.Getenv("ROCKETMQ_GO_LOG_LEVEL")
	if level == "" {
		level = "error"
	}
	rlog.SetLogLevel(level)
	if flag.NArg() == 1 && flag.Arg(0) == "list" {
		for _, sc := range scenarios {
			fmt.Println(sc.name)
		}
		return
	}
	if *asLedger {
		runLedger()
	}
	if *asSide != "" {
		exchange(*asSide, flag.Args())
	}
	wanted := map[string]bool{}
	for _, name := range flag.Args() {
		wanted[name] = true
	}
	prefix := strconv.FormatInt(time.Now().UnixMilli()%100_000_000, 36)
	slots := make(chan bool, *parallel)
	var wait sync.WaitGroup
	for _, sc := range scenarios {
		if len(wanted) > 0 && !wanted[sc.name] {
			continue
		}
		wait.Add(1)
		slots <- true
		go func(sc scenario) {
			defer func() { <-slots; wait.Done() }()
			one(sc, prefix)
		}(sc)
	}
	wait.Wait()
	os.Exit(0)
}
