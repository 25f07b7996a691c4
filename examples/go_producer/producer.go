package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// recordBytesMax is the largest record batch that the topic of a run takes.
const recordBytesMax = 8 * 1024 * 1024

// Producer publishes runs to one installation of Runfold.
type Producer struct {
	client     *kgo.Client
	admin      *kadm.Client
	brokers    string
	prefix     string
	partitions int // of the catalog
}

// Connect reads how many partitions the catalog has, which never changes.
func Connect(ctx context.Context, brokers, prefix string) (*Producer, error) {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(brokers),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		// An idempotent producer with acks=all is what franz-go makes by default.
		kgo.ProducerBatchMaxBytes(recordBytesMax),
		kgo.ProducerBatchCompression(kgo.NoCompression()),
	)
	if err != nil {
		return nil, err
	}
	p := &Producer{client: client, admin: kadm.NewClient(client), brokers: brokers, prefix: prefix}
	topics, err := p.admin.ListTopics(ctx, p.catalog())
	if err == nil {
		err = topics[p.catalog()].Err
	}
	if err != nil {
		client.Close()
		return nil, fmt.Errorf("the catalog %s: %w", p.catalog(), err)
	}
	p.partitions = len(topics[p.catalog()].Partitions)
	return p, nil
}

// Close ends the connections.
func (p *Producer) Close() {
	p.client.Close()
}

func (p *Producer) catalog() string {
	return p.prefix + ".runs"
}

// createTopic creates the topic of a run, with the configuration of the contract's channel `run`.
func (p *Producer) createTopic(ctx context.Context, name string) error {
	value := func(text string) *string { return &text }
	_, err := p.admin.CreateTopic(ctx, 1, -1, map[string]*string{
		"cleanup.policy":         value("delete"),
		"retention.ms":           value("-1"),
		"retention.bytes":        value("-1"),
		"message.timestamp.type": value("LogAppendTime"),
		"compression.type":       value("uncompressed"),
		"max.message.bytes":      value(fmt.Sprint(recordBytesMax)),
	}, name)
	if errors.Is(err, kerr.TopicAlreadyExists) {
		return nil
	}
	return err
}

// partition is the one of the catalog that has all records about a run.
func (p *Producer) partition(runID string) int32 {
	// franz-go hashes keys as Kafka does: murmur2, without the sign, modulo the number of partitions.
	// The key of the hash is the bare id of the run.
	hash := kgo.StickyKeyPartitioner(nil).ForTopic(p.catalog())
	return int32(hash.Partition(&kgo.Record{Key: []byte(runID)}, p.partitions))
}

// announce appends a record about a run to the catalog. Without a value it is a bell.
func (p *Producer) announce(ctx context.Context, key, runID string, value []byte) error {
	record := &kgo.Record{
		Topic:     p.catalog(),
		Partition: p.partition(runID),
		Key:       []byte(key + runID),
		Value:     value,
	}
	return p.client.ProduceSync(ctx, record).FirstErr()
}

// readCatalog hands over what the catalog has of a run, up to the end of the partition, and then what
// comes until isDone.
func (p *Producer) readCatalog(ctx context.Context, runID string, take func(key string, value []byte), isDone func() bool) error {
	partition := p.partition(runID)
	ends, err := p.admin.ListEndOffsets(ctx, p.catalog())
	if err != nil {
		return err
	}
	end, _ := ends.Lookup(p.catalog(), partition)
	if end.Err != nil {
		return end.Err
	}
	start := map[string]map[int32]kgo.Offset{p.catalog(): {partition: kgo.NewOffset().AtStart()}}
	reader, err := kgo.NewClient(
		kgo.SeedBrokers(p.brokers),
		kgo.ConsumePartitions(start),
		kgo.KeepControlRecords(), // so that the position reaches the end
		kgo.FetchMaxWait(500*time.Millisecond),
	)
	if err != nil {
		return err
	}
	defer reader.Close()
	for position := int64(0); position < end.Offset || !isDone(); {
		fetches := reader.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return err
		}
		fetches.EachRecord(func(record *kgo.Record) {
			position = record.Offset + 1
			if !record.Attrs.IsControl() {
				take(string(record.Key), record.Value)
			}
		})
	}
	return nil
}
