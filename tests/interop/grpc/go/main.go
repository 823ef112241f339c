// Scenarios of the official gRPC client for Go: grpc HOST:PORT RUN PARALLEL NAME...
//
// Topic RUN_NAME and group RUN_NAME_G exist already. One line of JSON per scenario: scenario, ok, ms,
// detail, counts, observed. The same checks as in the suites of the other languages. TLS, as the
// client does it unless told otherwise. It has no calls for recall, lite topics and priorities.
package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

const sql = "TAGS IN ('A','C') AND i BETWEEN 0 AND 1000"

var tags = []string{"A", "B", "C"}

type run struct {
	endpoint, topic, group string
	mutex                  sync.Mutex
	counts                 map[string]any
	observed               map[string]string
	added                  map[string]bool
	stops                  []func() error
}

func check(holds bool, format string, args ...any) {
	if !holds {
		panic(fmt.Sprintf(format, args...))
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func (r *run) config(group string) *rmq.Config {
	return &rmq.Config{Endpoint: r.endpoint, ConsumerGroup: group, Credentials: &credentials.SessionCredentials{}}
}

func (r *run) producer(options ...rmq.ProducerOption) rmq.Producer {
	producer, err := rmq.NewProducer(r.config(""), append(options, rmq.WithTopics(r.topic))...)
	must(err)
	must(producer.Start())
	r.stops = append(r.stops, producer.GracefulStop)
	return producer
}

func (r *run) simple(filter *rmq.FilterExpression) rmq.SimpleConsumer {
	consumer, err := rmq.NewSimpleConsumer(r.config(r.group), rmq.WithSimpleAwaitDuration(5*time.Second),
		rmq.WithSimpleSubscriptionExpressions(map[string]*rmq.FilterExpression{r.topic: filter}))
	must(err)
	must(consumer.Start())
	r.stops = append(r.stops, consumer.GracefulStop)
	return consumer
}

// What a push consumer was given, in order of arrival.
type sink struct {
	mutex  sync.Mutex
	views  []*rmq.MessageView
	first  map[string]time.Time
	last   time.Time
	answer func(*rmq.MessageView) (rmq.ConsumerResult, bool)
}

func (s *sink) consume(view *rmq.MessageView) rmq.ConsumerResult {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	result, counts := s.answer(view)
	if counts {
		s.views = append(s.views, view)
		s.last = time.Now()
		if _, known := s.first[id(view)]; !known {
			s.first[id(view)] = s.last
		}
	}
	return result
}

func (s *sink) all() []*rmq.MessageView {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return slices.Clone(s.views)
}

func (s *sink) wait(seconds int, what string, enough func([]*rmq.MessageView) bool) {
	deadline := time.Now().Add(time.Duration(seconds) * time.Second)
	for !enough(s.all()) {
		check(time.Now().Before(deadline), "not within %d s: %s; arrived %v", seconds, what, sortedIds(s.all()))
		time.Sleep(20 * time.Millisecond)
	}
}

func (s *sink) waitIds(seconds int, wanted []string) {
	s.wait(seconds, strings.Join(wanted, " "), func(views []*rmq.MessageView) bool {
		found := ids(views)
		return !slices.ContainsFunc(wanted, func(each string) bool { return !found[each] })
	})
}

func (s *sink) waitQuiet(quiet time.Duration) {
	for {
		s.mutex.Lock()
		left := time.Until(s.last.Add(quiet))
		s.mutex.Unlock()
		if left <= 0 {
			return
		}
		time.Sleep(left)
	}
}

func (r *run) push(filter *rmq.FilterExpression, answer func(*rmq.MessageView) (rmq.ConsumerResult, bool)) *sink {
	if answer == nil {
		answer = func(*rmq.MessageView) (rmq.ConsumerResult, bool) { return rmq.SUCCESS, true }
	}
	s := &sink{first: map[string]time.Time{}, last: time.Now(), answer: answer}
	consumer, err := rmq.NewPushConsumer(r.config(r.group), rmq.WithPushAwaitDuration(5*time.Second),
		rmq.WithPushSubscriptionExpressions(map[string]*rmq.FilterExpression{r.topic: filter}),
		rmq.WithPushMessageListener(&rmq.FuncMessageListener{Consume: s.consume}),
		rmq.WithPushConsumptionThreadCount(20), rmq.WithPushMaxCacheMessageCount(1024))
	must(err)
	must(consumer.Start())
	r.stops = append(r.stops, consumer.GracefulStop)
	return s
}

func id(view *rmq.MessageView) string { return view.GetProperties()["i"] }

func ids(views []*rmq.MessageView) map[string]bool {
	found := map[string]bool{}
	for _, view := range views {
		found[id(view)] = true
	}
	return found
}

func sortedIds(views []*rmq.MessageView) []string {
	var found []string
	for each := range ids(views) {
		found = append(found, each)
	}
	sort.Strings(found)
	return found
}

func numbers(end int, which func(int) bool) []string {
	var found []string
	for i := range end {
		if which == nil || which(i) {
			found = append(found, strconv.Itoa(i))
		}
	}
	return found
}

func (r *run) message(i int) *rmq.Message {
	message := &rmq.Message{Topic: r.topic, Body: fmt.Appendf(nil, "body %d ü中", i)}
	message.SetTag("A")
	message.SetKeys(fmt.Sprintf("k%d", i))
	message.AddProperty("i", strconv.Itoa(i))
	return message
}

func send(producer rmq.Producer, message *rmq.Message) *rmq.SendReceipt {
	receipts, err := producer.Send(context.Background(), message)
	must(err)
	return receipts[0]
}

func (r *run) checkContents(view *rmq.MessageView) {
	i := id(view)
	check(string(view.GetBody()) == fmt.Sprintf("body %s ü中", i), "body of %s: %q", i, view.GetBody())
	check(view.GetTopic() == r.topic, "topic %s", view.GetTopic())
	check(slices.Equal(view.GetKeys(), []string{"k" + i}), "keys %v", view.GetKeys())
	check(view.GetBornHost() != nil && view.GetBornTimestamp() != nil, "no birth")
	r.mutex.Lock()
	defer r.mutex.Unlock()
	for name := range view.GetProperties() {
		if name != "i" {
			r.added[name] = true
		}
	}
}

// So many different ones and no others; what came twice is counted: a stalled machine allows it.
func (r *run) exactly(number int, views []*rmq.MessageView) {
	check(len(ids(views)) == number, "%d messages, expected %d", len(ids(views)), number)
	if len(views) > number {
		r.counts["twice"] = len(views) - number
	}
}

func (r *run) observe(what string, value any) { r.observed[what] = fmt.Sprint(value) }

func (r *run) receive(consumer rmq.SimpleConsumer, count int32, invisible time.Duration) []*rmq.MessageView {
	found, err := consumer.Receive(context.Background(), count, invisible)
	if status, is := rmq.AsErrRpcStatus(err); is && status.GetCode() == 40401 {
		return nil
	}
	must(err)
	return found
}

func (r *run) drain(consumer rmq.SimpleConsumer, wanted int, seconds int) []*rmq.MessageView {
	var found []*rmq.MessageView
	deadline := time.Now().Add(time.Duration(seconds) * time.Second)
	for len(ids(found)) < wanted {
		check(time.Now().Before(deadline), "%d of %d after %d s", len(ids(found)), wanted, seconds)
		for _, view := range r.receive(consumer, 16, 20*time.Second) {
			found = append(found, view)
			must(consumer.Ack(context.Background(), view))
		}
	}
	return found
}

func (r *run) one(consumer rmq.SimpleConsumer, invisible time.Duration) *rmq.MessageView {
	deadline := time.Now().Add(90 * time.Second)
	for time.Now().Before(deadline) {
		if found := r.receive(consumer, 1, invisible); len(found) > 0 {
			return found[0]
		}
	}
	panic("nothing received within 90 s")
}

func (r *run) sendTagged() {
	producer := r.producer()
	for i := range 30 {
		message := r.message(i)
		message.SetTag(tags[i%3])
		send(producer, message)
	}
}

func notB(i int) bool { return i%3 != 1 }

func (r *run) pushFiltered(filter *rmq.FilterExpression) {
	s := r.push(filter, nil)
	r.sendTagged()
	s.waitIds(45, numbers(30, notB))
	s.waitQuiet(time.Second)
	r.exactly(20, s.all())
	for _, view := range s.all() {
		r.checkContents(view)
	}
}

func (r *run) simpleFiltered(filter *rmq.FilterExpression) {
	consumer := r.simple(filter)
	r.sendTagged()
	found := r.drain(consumer, 20, 60)
	wanted := numbers(30, notB)
	sort.Strings(wanted)
	check(slices.Equal(sortedIds(found), wanted), "messages %v", sortedIds(found))
	for _, view := range found {
		r.checkContents(view)
	}
}

func (r *run) sendGroups(groups, each int) {
	producer := r.producer()
	for i := range groups * each {
		message := r.message(i)
		message.SetMessageGroup(fmt.Sprintf("g%d", i%groups))
		send(producer, message)
	}
}

func checkOrder(views []*rmq.MessageView, groups int) {
	last, seen := map[string]int{}, map[int]bool{}
	for _, view := range views {
		i, _ := strconv.Atoi(id(view))
		if seen[i] {
			continue
		}
		seen[i] = true
		group := *view.GetMessageGroup()
		check(group == fmt.Sprintf("g%d", i%groups), "message group %s of %d", group, i)
		before, known := last[group]
		check(!known || before < i, "%d after %d", i, before)
		last[group] = i
	}
}

func errorOf(producer rmq.Producer, message *rmq.Message) string {
	_, err := producer.Send(context.Background(), message)
	if status, is := rmq.AsErrRpcStatus(err); is {
		return strconv.Itoa(int(status.GetCode()))
	}
	return fmt.Sprintf("%T", err)
}

var scenarios = map[string]func(*run){
	"send-normal": func(r *run) {
		producer := r.producer()
		sent := map[string]string{}
		for i := range 12 {
			sent[strconv.Itoa(i)] = send(producer, r.message(i)).MessageID
		}
		var wait sync.WaitGroup
		var mutex sync.Mutex
		for i := 12; i < 24; i++ {
			wait.Add(1)
			producer.SendAsync(context.Background(), r.message(i),
				func(_ context.Context, receipts []*rmq.SendReceipt, err error) {
					defer wait.Done()
					mutex.Lock()
					defer mutex.Unlock()
					if err == nil {
						sent[strconv.Itoa(i)] = receipts[0].MessageID
					}
				})
		}
		wait.Wait()
		check(len(sent) == 24, "%d sent", len(sent))
		large := make([]byte, 300_000)
		rand.Read(large)
		message := &rmq.Message{Topic: r.topic, Body: large}
		message.AddProperty("i", "large")
		send(producer, message)
		for _, view := range r.drain(r.simple(rmq.SUB_ALL), 25, 60) {
			if id(view) == "large" {
				check(bytes.Equal(view.GetBody(), large), "the large body came back changed")
				continue
			}
			r.checkContents(view)
			check(*view.GetTag() == "A", "tag %s", *view.GetTag())
			check(view.GetMessageId() == sent[id(view)], "message id %s", view.GetMessageId())
			r.observe("delivery attempt", view.GetDeliveryAttempt())
		}
	},
	"push": func(r *run) {
		s := r.push(rmq.SUB_ALL, nil)
		producer := r.producer()
		for i := range 60 {
			send(producer, r.message(i))
		}
		s.waitIds(45, numbers(60, nil))
		s.waitQuiet(time.Second)
		r.exactly(60, s.all())
		for _, view := range s.all() {
			r.checkContents(view)
		}
	},
	"push-retry": func(r *run) {
		s := r.push(rmq.SUB_ALL, func(view *rmq.MessageView) (rmq.ConsumerResult, bool) {
			if id(view) == "0" || view.GetDeliveryAttempt() == 1 {
				return rmq.FAILURE, true
			}
			return rmq.SUCCESS, true
		})
		producer := r.producer()
		for i := range 4 {
			send(producer, r.message(i))
		}
		s.wait(80, "nine attempts", func(views []*rmq.MessageView) bool { return len(views) >= 9 })
		s.waitQuiet(8 * time.Second)
		attempts := map[string][]int32{}
		for _, view := range s.all() {
			r.checkContents(view)
			if !slices.Contains(attempts[id(view)], view.GetDeliveryAttempt()) {
				attempts[id(view)] = append(attempts[id(view)], view.GetDeliveryAttempt())
			}
		}
		check(fmt.Sprint(attempts) == "map[0:[1 2 3] 1:[1 2] 2:[1 2] 3:[1 2]]", "attempts %v", attempts)
	},
	"push-tags":   func(r *run) { r.pushFiltered(rmq.NewFilterExpression("A || C")) },
	"push-sql92":  func(r *run) { r.pushFiltered(rmq.NewFilterExpressionWithType(sql, rmq.SQL92)) },
	"simple-tags": func(r *run) { r.simpleFiltered(rmq.NewFilterExpression("A || C")) },
	"simple-sql92": func(r *run) {
		r.simpleFiltered(rmq.NewFilterExpressionWithType(sql, rmq.SQL92))
	},
	"push-fifo": func(r *run) {
		s := r.push(rmq.SUB_ALL, nil)
		r.sendGroups(5, 8)
		s.waitIds(60, numbers(40, nil))
		s.waitQuiet(time.Second)
		r.exactly(40, s.all())
		checkOrder(s.all(), 5)
		for _, view := range s.all() {
			r.checkContents(view)
		}
	},
	"push-fifo-retry": func(r *run) {
		failed := map[string]bool{}
		s := r.push(rmq.SUB_ALL, func(view *rmq.MessageView) (rmq.ConsumerResult, bool) {
			i, _ := strconv.Atoi(id(view))
			if i < 4 && !failed[id(view)] {
				failed[id(view)] = true
				return rmq.FAILURE, false
			}
			return rmq.SUCCESS, true
		})
		r.sendGroups(2, 6)
		s.waitIds(80, numbers(12, nil))
		s.waitQuiet(time.Second)
		r.exactly(12, s.all())
		checkOrder(s.all(), 2)
	},
	"simple": func(r *run) {
		consumer, producer := r.simple(rmq.SUB_ALL), r.producer()
		for i := range 20 {
			send(producer, r.message(i))
		}
		acknowledged, left := map[string]bool{}, map[string]bool{}
		deadline := time.Now().Add(90 * time.Second)
		for len(acknowledged)+len(left) < 20 {
			check(time.Now().Before(deadline), "only %d and %d came", len(acknowledged), len(left))
			for _, view := range r.receive(consumer, 8, 10*time.Second) {
				r.checkContents(view)
				if i, _ := strconv.Atoi(id(view)); i%4 != 0 {
					must(consumer.Ack(context.Background(), view))
					acknowledged[id(view)] = true
				} else {
					left[id(view)] = true
				}
			}
		}
		again := r.drain(consumer, 5, 90)
		check(len(ids(again)) == len(left), "came again: %v", sortedIds(again))
		for _, view := range again {
			check(left[id(view)], "%s came again", id(view))
			check(view.GetDeliveryAttempt() > 1, "attempt %d", view.GetDeliveryAttempt())
		}
	},
	"simple-invisible": func(r *run) {
		consumer := r.simple(rmq.SUB_ALL)
		send(r.producer(), r.message(0))
		first := r.one(consumer, time.Minute)
		before := time.Now()
		must(consumer.ChangeInvisibleDuration(first, 3*time.Second))
		second := r.one(consumer, 10*time.Second)
		took := time.Since(before)
		check(took >= 2*time.Second, "made visible after 3 s, came after %s", took)
		r.observe("attempt", second.GetDeliveryAttempt())
		must(consumer.ChangeInvisibleDuration(second, 40*time.Second))
		for until := time.Now().Add(15 * time.Second); time.Now().Before(until); {
			check(len(r.receive(consumer, 1, 10*time.Second)) == 0, "came although it was kept invisible")
		}
		must(consumer.Ack(context.Background(), second))
	},
	"simple-fifo": func(r *run) {
		consumer, producer := r.simple(rmq.SUB_ALL), r.producer()
		for i := range 3 {
			message := r.message(i)
			message.SetMessageGroup("g")
			send(producer, message)
		}
		view := r.one(consumer, 10*time.Second)
		check(id(view) == "0", "first %s", id(view))
		check(len(r.receive(consumer, 1, 10*time.Second)) == 0, "second before the first was acknowledged")
		must(consumer.Ack(context.Background(), view))
		check(id(r.one(consumer, 10*time.Second)) == "1", "second")
		view = r.one(consumer, 10*time.Second)
		check(id(view) == "1", "second, not acknowledged in time: %s", id(view))
		r.observe("attempt", view.GetDeliveryAttempt())
		must(consumer.Ack(context.Background(), view))
		view = r.one(consumer, 10*time.Second)
		check(id(view) == "2", "third %s", id(view))
		must(consumer.Ack(context.Background(), view))
	},
	"delay": func(r *run) {
		s := r.push(rmq.SUB_ALL, nil)
		producer := r.producer()
		due := map[string]time.Time{}
		for i := range 8 {
			at := time.Now().Add(3*time.Second + time.Duration(i)*500*time.Millisecond).Truncate(time.Millisecond)
			due[strconv.Itoa(i)] = at
			message := r.message(i)
			message.SetDelayTimestamp(at)
			send(producer, message)
		}
		s.waitIds(45, numbers(8, nil))
		for _, view := range s.all() {
			late := s.first[id(view)].Sub(due[id(view)])
			check(late > -time.Second && late < 6*time.Second, "late by %s", late)
			r.checkContents(view)
			check(view.GetDeliveryTimestamp().Equal(due[id(view)]), "delivery timestamp of %s", id(view))
		}
	},
	"transaction": func(r *run) {
		s := r.push(rmq.SUB_ALL, nil)
		producer := r.producer(rmq.WithTransactionChecker(&rmq.TransactionChecker{
			Check: func(*rmq.MessageView) rmq.TransactionResolution { return rmq.UNKNOWN },
		}))
		for i := range 10 {
			transaction := producer.BeginTransaction()
			_, err := producer.SendWithTransaction(context.Background(), r.message(i), transaction)
			must(err)
			if i%2 == 0 {
				must(transaction.Commit())
			} else {
				must(transaction.RollBack())
			}
		}
		s.waitIds(45, numbers(10, func(i int) bool { return i%2 == 0 }))
		s.waitQuiet(3 * time.Second)
		r.exactly(5, s.all())
		for _, view := range s.all() {
			r.checkContents(view)
		}
	},
	"transaction-check": func(r *run) {
		s := r.push(rmq.SUB_ALL, nil)
		asked := map[string]int{}
		var mutex sync.Mutex
		producer := r.producer(rmq.WithTransactionChecker(&rmq.TransactionChecker{
			Check: func(view *rmq.MessageView) rmq.TransactionResolution {
				mutex.Lock()
				defer mutex.Unlock()
				i, _ := strconv.Atoi(id(view))
				asked[id(view)]++
				switch {
				case i%3 == 1:
					return rmq.ROLLBACK
				case i%3 == 2 && asked[id(view)] == 1:
					return rmq.UNKNOWN
				}
				return rmq.COMMIT
			},
		}))
		for i := range 6 {
			_, err := producer.SendWithTransaction(context.Background(), r.message(i), producer.BeginTransaction())
			must(err)
		}
		s.waitIds(80, numbers(6, notB))
		s.waitQuiet(3 * time.Second)
		mutex.Lock()
		defer mutex.Unlock()
		check(len(asked) == 6, "asked about %d", len(asked))
		r.exactly(4, s.all())
	},
	"wrong-type": func(r *run) {
		producer := r.producer()
		message := r.message(0)
		message.SetMessageGroup("g")
		r.observe("message group to a normal topic", errorOf(producer, message))
		message = r.message(0)
		message.SetDelayTimestamp(time.Now().Add(5 * time.Second))
		r.observe("delivery timestamp to a normal topic", errorOf(producer, message))
		message = r.message(0)
		message.Topic += "-none"
		r.observe("unknown topic", errorOf(producer, message))
		send(producer, r.message(1))
		found := r.drain(r.simple(rmq.SUB_ALL), 1, 30)
		check(slices.Equal(sortedIds(found), []string{"1"}), "messages %v", sortedIds(found))
	},
}

func (r *run) perform(name string) (detail string) {
	defer func() {
		if why := recover(); why != nil {
			detail = fmt.Sprint(why)
			if _, is := why.(error); is {
				detail += "\n" + string(debug.Stack())
			}
		}
	}()
	scenarios[name](r)
	return ""
}

func main() {
	os.Setenv("rocketmq.client.logRoot", os.Getenv("HOME"))
	rmq.ResetLogger()
	endpoint, prefix := os.Args[1], os.Args[2]
	parallel, _ := strconv.Atoi(os.Args[3])
	names := make(chan string)
	var print sync.Mutex
	var workers sync.WaitGroup
	for range parallel {
		workers.Add(1)
		go func() {
			defer workers.Done()
			for name := range names {
				topic := prefix + "_" + name
				r := &run{endpoint: endpoint, topic: topic, group: topic + "_G", counts: map[string]any{},
					observed: map[string]string{}, added: map[string]bool{}}
				began := time.Now()
				detail := r.perform(name)
				added := []string{}
				for each := range r.added {
					added = append(added, each)
				}
				sort.Strings(added)
				r.observe("added properties", added)
				line, _ := json.Marshal(map[string]any{"scenario": name, "ok": detail == "", "detail": detail,
					"ms": time.Since(began).Milliseconds(), "counts": r.counts, "observed": r.observed})
				print.Lock()
				fmt.Println(string(line))
				print.Unlock()
				for _, stop := range r.stops {
					go stop() // it waits for polls; the process ends first
				}
			}
		}()
	}
	for _, name := range os.Args[4:] {
		if scenarios[name] == nil {
			continue
		}
		names <- name
	}
	close(names)
	workers.Wait()
	os.Exit(0)
}
