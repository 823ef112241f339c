package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// Every kind of traffic at once while somebody kills the broker: gosuite -namesrv HOST:PORT -ledger. Prints
// {"ready":true} when traffic flows; a line on stdin ends it. Then everything acknowledged must arrive and nothing
// that was not sent; one line of JSON per kind tells what came of it. Not SendAsync: the client, 2.1.2, dereferences
// the answer that it did not get when a connection goes.

const arrival = 100 * time.Second

// ledger is one kind of traffic: what was sent, what was acknowledged, what arrived.
type ledger struct {
	kind     string
	topic    string
	mu       sync.Mutex
	sent     map[string]int
	acked    map[string]int
	failures int64
	sink     sink
}

func (l *ledger) message() *primitive.Message {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := len(l.sent)
	l.sent[strconv.Itoa(i)] = 1
	return message(l.topic, "t", i)
}

func (l *ledger) answer(r *primitive.SendResult, err error, messages ...*primitive.Message) {
	if err != nil || r.Status != primitive.SendOK {
		atomic.AddInt64(&l.failures, 1)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range messages {
		l.acked[m.GetProperty("i")] = 1
	}
}

// committer leaves every third transaction to the check-back.
type committer struct{}

func (committer) ExecuteLocalTransaction(m *primitive.Message) primitive.LocalTransactionState {
	if i, _ := strconv.Atoi(m.GetProperty("i")); i%3 == 0 {
		return primitive.UnknowState
	}
	return primitive.CommitMessageState
}

func (committer) CheckLocalTransaction(*primitive.MessageExt) primitive.LocalTransactionState {
	return primitive.CommitMessageState
}

func (l *ledger) step(c *run) func() {
	background := context.Background()
	if l.kind == "transaction" {
		p, err := rocketmq.NewTransactionProducer(committer{}, producer.WithNsResolver(resolver()),
			producer.WithGroupName(c.name("TP")), producer.WithInstanceName(instance()), producer.WithRetry(0))
		c.ok(err)
		c.ok(p.Start())
		return func() {
			m := l.message()
			r, err := p.SendMessageInTransaction(background, m)
			if r == nil {
				l.answer(nil, err, m)
				return
			}
			l.answer(r.SendResult, err, m)
		}
	}
	options := []producer.Option{producer.WithGroupName(c.name("P" + l.kind)), producer.WithRetry(0)}
	if l.kind == "order" {
		options = append(options, producer.WithQueueSelector(producer.NewHashQueueSelector()))
	}
	p := c.producer(options...)
	if l.kind == "batch" {
		return func() {
			var batch []*primitive.Message
			for n := 0; n < 8; n++ {
				batch = append(batch, l.message())
			}
			r, err := p.SendSync(background, batch...)
			l.answer(r, err, batch...)
		}
	}
	return func() {
		m := l.message()
		if l.kind == "delay" {
			m.WithDelayTimeLevel(1)
		}
		if l.kind == "order" {
			m.WithShardingKey(strconv.Itoa(len(m.GetProperty("i")) % 8))
		}
		r, err := p.SendSync(background, m)
		l.answer(r, err, m)
	}
}

func (l *ledger) consume(c *run) {
	listen := l.sink.listen
	if l.kind == "retry" {
		listen = func(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			if messages[0].ReconsumeTimes == 0 && messages[0].GetProperty("i") != "warm" {
				if concurrent, ok := primitive.GetConcurrentlyCtx(ctx); ok {
					concurrent.DelayLevelWhenNextConsume = 1
				}
				return consumer.ConsumeRetryLater, nil
			}
			return l.sink.listen(ctx, messages...)
		}
	}
	c.push(c.name("G"+l.kind), l.topic, everything(), listen, consumer.WithConsumerOrder(l.kind == "order"))
}

// verdict waits for what was acknowledged.
func (l *ledger) verdict() string {
	l.mu.Lock()
	wanted := l.acked
	l.mu.Unlock()
	var none []string
	for deadline := time.Now().Add(arrival); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		if none = missing(wanted, l.sink.ids()); len(none) == 0 {
			break
		}
	}
	if len(none) > 0 {
		return fmt.Sprintf("%d of %d missing, such as %s", len(none), len(wanted), none[0])
	}
	last, seen := map[string]int64{}, map[string]bool{}
	for _, m := range l.sink.all() {
		id := m.GetProperty("i")
		if l.sent[id] == 0 {
			return id + " arrived without having been sent"
		}
		if l.kind == "order" && !seen[id] {
			queue := fmt.Sprint(m.Queue.BrokerName, "/", m.Queue.QueueId)
			if before, known := last[queue]; known && before > m.QueueOffset {
				return fmt.Sprintf("queue %s: offset %d after %d", queue, m.QueueOffset, before)
			}
			last[queue] = m.QueueOffset
		}
		seen[id] = true
	}
	return ""
}

func runLedger() {
	prefix := "Ledger" + strconv.FormatInt(time.Now().UnixMilli()%100_000_000, 36)
	c := &run{prefix: prefix, counts: map[string]any{}, observed: map[string]string{}}
	var ledgers []*ledger
	var stopped atomic.Bool
	var wait sync.WaitGroup
	for _, kind := range []string{"sync", "batch", "order", "delay", "transaction", "retry"} {
		own := &run{prefix: prefix + kind, counts: map[string]any{}, observed: map[string]string{}}
		l := &ledger{kind: kind, sent: map[string]int{}, acked: map[string]int{}}
		l.topic = own.topic(c.producer(producer.WithGroupName(own.name("warm"))))
		l.consume(c)
		step := l.step(c)
		ledgers = append(ledgers, l)
		wait.Add(1)
		go func() {
			defer wait.Done()
			for !stopped.Load() {
				step()
				time.Sleep(20 * time.Millisecond)
			}
		}()
	}
	fmt.Println(`{"ready":true}`)
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	stopped.Store(true)
	wait.Wait()
	time.Sleep(6 * time.Second) // what is in flight is answered or has timed out
	for _, l := range ledgers {
		detail := l.verdict()
		line := map[string]any{"scenario": "ledger-" + l.kind, "ok": detail == "", "ms": 0, "detail": detail,
			"counts": map[string]any{"sent": len(l.sent), "acknowledged": len(l.acked), "arrived": len(l.sink.ids()),
				"duplicates": len(l.sink.all()) - len(l.sink.ids()), "failed sends": atomic.LoadInt64(&l.failures)}}
		text, _ := json.Marshal(line)
		fmt.Println(string(text))
	}
	os.Exit(0)
}
