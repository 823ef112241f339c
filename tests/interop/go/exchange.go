package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// One side of an exchange with another client: gosuite -namesrv HOST:PORT -exchange send|consume TOPIC [GROUP]. To
// send is to send a message of every kind and end. To consume is to print a line of JSON for each message, after
// {"ready":true}, until a line on stdin.

const exchangeSize = 20_000 // bytes of the body that is compressed

func exchange(mode string, args []string) {
	c := &run{prefix: "Exchange", counts: map[string]any{}, observed: map[string]string{}}
	switch mode {
	case "send":
		exchangeSend(c, args[0])
	case "consume":
		exchangeConsume(c, args[0], args[1])
	default:
		panic(failure("exchange: send or consume"))
	}
	c.close()
	os.Exit(0)
}

func exchangeSend(c *run, topic string) {
	background := context.Background()
	p := c.producer(producer.WithQueueSelector(producer.NewHashQueueSelector()))
	send := func(messages ...*primitive.Message) {
		r, err := p.SendSync(background, messages...)
		c.ok(err)
		c.check(r.Status == primitive.SendOK, "status %v", r.Status)
	}
	of := func(body string) *primitive.Message { return primitive.NewMessage(topic, []byte(body)) }
	send(of("plain"))
	all := of("properties \u00fc\u4e2d").WithTag("t").WithKeys([]string{"k1", "k2"})
	all.WithProperty("colour", "red")
	send(all)
	send(of(strings.Repeat("z", exchangeSize)))
	send(of("batch-0"), of("batch-1"), of("batch-2"))
	send(of("delay").WithDelayTimeLevel(1))
	for n := 0; n < 3; n++ {
		send(of(fmt.Sprintf("order-%d", n)).WithShardingKey("one"))
	}
	c.ok(p.SendOneWay(background, of("oneway")))
	t, err := rocketmq.NewTransactionProducer(&listener{}, producer.WithNsResolver(resolver()),
		producer.WithGroupName(c.name("TP")), producer.WithInstanceName(instance()))
	c.ok(err)
	c.ok(t.Start())
	c.onClose(func() { _ = t.Shutdown() })
	for _, how := range []string{"commit", "rollback"} {
		m := of("transaction-" + how)
		m.WithProperty("first", how)
		_, err = t.SendMessageInTransaction(background, m)
		c.ok(err)
	}
}

func exchangeConsume(c *run, topic, group string) {
	var mu sync.Mutex
	c.push(group, topic, everything(), func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		mu.Lock()
		defer mu.Unlock()
		for _, m := range messages {
			line, _ := json.Marshal(map[string]any{"body": string(m.Body), "tags": m.GetTags(), "keys": m.GetKeys(),
				"colour": m.GetProperty("colour"), "queue": m.Queue.QueueId, "offset": m.QueueOffset})
			fmt.Println(string(line))
		}
		return consumer.ConsumeSuccess, nil
	})
	mu.Lock()
	fmt.Println(`{"ready":true}`)
	mu.Unlock()
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
}
