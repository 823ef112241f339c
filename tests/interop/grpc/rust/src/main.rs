//! The suite of the official client for Rust: rust ENDPOINT PREFIX PARALLEL SCENARIO...
//!
//! One line of JSON for each scenario, as the other languages' suites print it. This release of the
//! client has producers, transactions with checks, and simple consumers.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::{MessageBuilder, MessageView};
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::{Producer, SimpleConsumer};
use serde_json::json;

const TAGS: [&str; 3] = ["A", "B", "C"];
const SQL: &str = "TAGS is not null and TAGS in ('A', 'C')";

struct Run {
    endpoint: String,
    topic: String,
    observed: Mutex<BTreeMap<String, String>>,
    twice: Mutex<usize>,
}

fn now() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs_f64()
}

fn id(view: &MessageView) -> usize {
    view.properties()["i"].parse().unwrap()
}

fn all() -> FilterExpression {
    FilterExpression::new(FilterType::Tag, "*")
}

impl Run {
    fn client(&self) -> ClientOption {
        let mut option = ClientOption::default();
        option.set_access_url(self.endpoint.clone());
        option.set_enable_tls(false);
        option.set_timeout(Duration::from_secs(10));
        option.set_long_polling_timeout(Duration::from_secs(15));
        option
    }

    fn topics(&self) -> Vec<String> {
        vec![self.topic.clone()]
    }

    async fn producer(&self) -> Producer {
        let mut option = ProducerOption::default();
        option.set_topics(self.topics());
        let mut made = Producer::new(option, self.client()).unwrap();
        made.start().await.unwrap();
        made
    }

    async fn consumer(&self) -> SimpleConsumer {
        let mut option = SimpleConsumerOption::default();
        option.set_topics(self.topics());
        option.set_consumer_group(format!("{}_G", self.topic));
        let mut made = SimpleConsumer::new(option, self.client()).unwrap();
        made.start().await.unwrap();
        made
    }

    fn message(&self, i: usize) -> MessageBuilder {
        MessageBuilder::builder()
            .set_topic(self.topic.clone())
            .set_body(format!("body {i} ü中").into_bytes())
            .set_tag("A")
            .set_keys(vec![format!("k{i}")])
            .set_properties(HashMap::from([("i".to_string(), i.to_string())]))
    }

    fn check(&self, view: &MessageView) {
        let i = id(view);
        assert_eq!(view.body(), format!("body {i} ü中").as_bytes());
        assert_eq!(view.topic(), self.topic);
        assert_eq!(view.keys(), [format!("k{i}")]);
        assert!(!view.born_host().is_empty() && view.born_timestamp() > 0);
    }

    async fn receive(
        &self,
        consumer: &SimpleConsumer,
        filter: &FilterExpression,
        count: i32,
        invisible_s: u64,
    ) -> Vec<MessageView> {
        let invisible = Duration::from_secs(invisible_s);
        match consumer
            .receive_with(self.topic.clone(), filter, count, invisible)
            .await
        {
            Ok(found) => found,
            Err(error) => {
                // This client gives up when its server does, or an instant earlier.
                let why = format!("{error:?}");
                assert!(
                    why.contains("MessageNotFound")
                        || why.contains("MESSAGE_NOT_FOUND")
                        || why.contains("Timeout expired"),
                    "{why}"
                );
                vec![]
            }
        }
    }

    /// So many different messages, each acknowledged; what came twice is counted.
    async fn drain(
        &self,
        consumer: &SimpleConsumer,
        filter: &FilterExpression,
        wanted: usize,
    ) -> Vec<MessageView> {
        let mut found: BTreeMap<usize, MessageView> = BTreeMap::new();
        let until = Instant::now() + Duration::from_secs(90);
        while found.len() < wanted {
            assert!(
                Instant::now() < until,
                "{} of {wanted} after 90 s",
                found.len()
            );
            for view in self.receive(consumer, filter, 16, 20).await {
                self.check(&view);
                consumer.ack(&view).await.unwrap();
                if found.insert(id(&view), view).is_some() {
                    *self.twice.lock().unwrap() += 1;
                }
            }
        }
        found.into_values().collect()
    }

    fn observe(&self, what: &str, value: impl ToString) {
        self.observed
            .lock()
            .unwrap()
            .insert(what.to_string(), value.to_string());
    }

    async fn send_normal(&self) {
        let producer = self.producer().await;
        let mut sent = Vec::new();
        for i in 0..12 {
            let receipt = producer
                .send(self.message(i).build().unwrap())
                .await
                .unwrap();
            sent.push(receipt.message_id().to_string());
        }
        let batch = (12..24)
            .map(|i| self.message(i).build().unwrap())
            .collect::<Vec<_>>();
        producer.batch_send(batch).await.unwrap();
        let consumer = self.consumer().await;
        for view in self.drain(&consumer, &all(), 24).await {
            assert_eq!(view.tag(), Some("A"));
            if id(&view) < 12 {
                assert_eq!(view.message_id(), sent[id(&view)]);
            }
            self.observe("delivery attempt", view.delivery_attempt());
        }
    }

    async fn filtered(&self, filter: FilterExpression) {
        let consumer = self.consumer().await;
        let producer = self.producer().await;
        for i in 0..30 {
            let message = self.message(i).set_tag(TAGS[i % 3]).build().unwrap();
            producer.send(message).await.unwrap();
        }
        let found = self.drain(&consumer, &filter, 20).await;
        assert!(found.iter().all(|view| id(view) % 3 != 1));
    }

    async fn simple(&self) {
        let (consumer, producer) = (self.consumer().await, self.producer().await);
        for i in 0..20 {
            producer
                .send(self.message(i).build().unwrap())
                .await
                .unwrap();
        }
        let (mut acknowledged, mut left) = (BTreeSet::new(), BTreeSet::new());
        let until = Instant::now() + Duration::from_secs(90);
        while acknowledged.len() + left.len() < 20 {
            assert!(
                Instant::now() < until,
                "only {acknowledged:?} and {left:?} came"
            );
            for view in self.receive(&consumer, &all(), 8, 10).await {
                self.check(&view);
                if id(&view) % 4 != 0 {
                    consumer.ack(&view).await.unwrap();
                    acknowledged.insert(id(&view));
                } else {
                    left.insert(id(&view));
                }
            }
        }
        for view in self.drain(&consumer, &all(), 5).await {
            assert!(left.contains(&id(&view)), "{} came again", id(&view));
            assert!(view.delivery_attempt() > 1);
        }
    }

    async fn simple_fifo(&self) {
        let (consumer, producer) = (self.consumer().await, self.producer().await);
        for i in 0..3 {
            producer
                .send(self.message(i).set_message_group("g").build().unwrap())
                .await
                .unwrap();
        }
        for i in 0..3 {
            let mut found = vec![];
            let until = Instant::now() + Duration::from_secs(90);
            while found.is_empty() {
                assert!(Instant::now() < until, "{i} did not come");
                found = self.receive(&consumer, &all(), 1, 20).await;
            }
            assert_eq!(id(&found[0]), i);
            assert_eq!(found[0].message_group(), Some("g"));
            if i == 0 {
                assert!(self.receive(&consumer, &all(), 1, 20).await.is_empty());
            }
            consumer.ack(&found[0]).await.unwrap();
        }
    }

    async fn delay(&self) {
        let (consumer, producer) = (self.consumer().await, self.producer().await);
        let due = now() + 4.0;
        for i in 0..4 {
            let message = self
                .message(i)
                .set_delivery_timestamp((due + i as f64) as i64);
            producer.send(message.build().unwrap()).await.unwrap();
        }
        for view in self.drain(&consumer, &all(), 4).await {
            let wanted = (due + id(&view) as f64) as i64;
            assert_eq!(view.delivery_timestamp(), Some(wanted));
            assert!(now() >= wanted as f64 - 1.0, "{} came early", id(&view));
        }
    }

    async fn transactions(&self, checked: bool) {
        let consumer = self.consumer().await;
        let mut option = ProducerOption::default();
        option.set_topics(self.topics());
        let asked = Arc::new(Mutex::new(BTreeSet::new()));
        let seen = asked.clone();
        let checker = Box::new(move |_: String, view: MessageView| {
            seen.lock().unwrap().insert(id(&view));
            if !checked {
                TransactionResolution::UNKNOWN
            } else if id(&view) % 2 == 0 {
                TransactionResolution::COMMIT
            } else {
                TransactionResolution::ROLLBACK
            }
        });
        let mut producer =
            Producer::new_transaction_producer(option, self.client(), checker).unwrap();
        producer.start().await.unwrap();
        for i in 0..6 {
            let message = self.message(i).enable_transaction().build().unwrap();
            let transaction = producer.send_transaction_message(message).await.unwrap();
            if checked {
                continue;
            }
            if i % 2 == 0 {
                transaction.commit().await.unwrap();
            } else {
                transaction.rollback().await.unwrap();
            }
        }
        let found = self.drain(&consumer, &all(), 3).await;
        assert!(found.iter().all(|view| id(view) % 2 == 0));
        let until = Instant::now() + Duration::from_secs(60);
        while checked && asked.lock().unwrap().len() < 6 {
            assert!(
                Instant::now() < until,
                "asked about {:?}",
                asked.lock().unwrap()
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert!(self.receive(&consumer, &all(), 16, 20).await.is_empty());
    }

    async fn wrong_type(&self) {
        let producer = self.producer().await;
        for (what, message) in [
            ("message group", self.message(0).set_message_group("g")),
            (
                "delivery timestamp",
                self.message(0).set_delivery_timestamp(now() as i64 + 5),
            ),
            (
                "unknown topic",
                self.message(0).set_topic(format!("{}-none", self.topic)),
            ),
        ] {
            assert!(
                producer.send(message.build().unwrap()).await.is_err(),
                "{what}"
            );
        }
        producer
            .send(self.message(1).build().unwrap())
            .await
            .unwrap();
        let consumer = self.consumer().await;
        let found = self.drain(&consumer, &all(), 1).await;
        assert_eq!(id(&found[0]), 1);
    }

    async fn perform(&self, name: &str) {
        match name {
            "send-normal" => self.send_normal().await,
            "simple" => self.simple().await,
            "simple-tags" => {
                self.filtered(FilterExpression::new(FilterType::Tag, "A || C"))
                    .await
            }
            "simple-sql92" => {
                self.filtered(FilterExpression::new(FilterType::Sql, SQL))
                    .await
            }
            "simple-fifo" => self.simple_fifo().await,
            "delay" => self.delay().await,
            "transaction" => self.transactions(false).await,
            "transaction-check" => self.transactions(true).await,
            "wrong-type" => self.wrong_type().await,
            _ => panic!("no scenario {name}"),
        }
    }
}

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let (endpoint, prefix) = (arguments.next().unwrap(), arguments.next().unwrap());
    let parallel: usize = arguments.next().unwrap().parse().unwrap();
    let places = Arc::new(tokio::sync::Semaphore::new(parallel));
    let mut works = Vec::new();
    for name in arguments {
        let (places, endpoint, prefix) = (places.clone(), endpoint.clone(), prefix.clone());
        works.push(tokio::spawn(async move {
            let _place = places.acquire_owned().await.unwrap();
            let run = Arc::new(Run {
                endpoint,
                topic: format!("{prefix}_{name}"),
                observed: Mutex::default(),
                twice: Mutex::default(),
            });
            let began = Instant::now();
            let (own, scenario) = (run.clone(), name.clone());
            let ended = tokio::spawn(async move { own.perform(&scenario).await }).await;
            let detail = ended.err().map_or(String::new(), |error| {
                let why = error.into_panic();
                why.downcast_ref::<String>().cloned().or(why.downcast_ref::<&str>().map(|s| s.to_string())).unwrap_or_default()
            });
            let line = json!({"scenario": name, "ok": detail.is_empty(), "detail": detail,
                "ms": began.elapsed().as_millis() as u64, "counts": {"twice": *run.twice.lock().unwrap()},
                "observed": *run.observed.lock().unwrap()});
            println!("{line}");
        }));
    }
    for work in works {
        work.await.unwrap();
    }
    std::process::exit(0);
}
