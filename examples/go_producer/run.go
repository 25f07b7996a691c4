package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	// quietTime is how long a run may be quiet before its bell has to be rung.
	quietTime = 5 * time.Second

	// topicBytesMax is Kafka's limit for the name of a topic.
	topicBytesMax = 249

	// nextTopicTime is how long to wait for the catalog to say where a sealed log goes on.
	nextTopicTime = 2 * time.Minute
)

// life is a record of the catalog: which log a run has, and whose run it is.
type life struct {
	RunID   string `json:"run_id"`
	LogID   string `json:"log_id"`
	AgentID string `json:"agent_id"`
}

// segments is a record of the catalog: where the log of a run goes on.
type segments struct {
	LogID string `json:"log_id"`
	Base  int64  `json:"base"`
}

// Run is a run that this process publishes to. Use it in one goroutine at a time.
type Run struct {
	producer *Producer
	life     life
	base     int64 // the offset in the run at which its last topic begins
	spokeAt  time.Time
}

// Published is an acknowledged event.
type Published struct {
	Event  Event
	Offset int64 // in the run
}

// OpenRun opens a run, or goes on with one that this agent has opened before.
func (p *Producer) OpenRun(ctx context.Context, runID, agentID string) (*Run, error) {
	run, err := p.findRun(ctx, runID)
	if err != nil {
		return nil, err
	}
	if run == nil {
		if run, err = p.createRun(ctx, runID, agentID); err != nil {
			return nil, err
		}
	}
	if run.life.AgentID != agentID {
		return nil, fmt.Errorf("run %q belongs to agent %q", runID, run.life.AgentID)
	}
	if run.base > 0 {
		// Nobody may have published since the topic before was sealed.
		err = p.createTopic(ctx, run.topic())
	}
	return run, err
}

func (p *Producer) createRun(ctx context.Context, runID, agentID string) (*Run, error) {
	logID := strings.ReplaceAll(uuid.Must(uuid.NewV7()).String(), "-", "")
	created := &Run{producer: p, life: life{runID, logID, agentID}}
	if err := p.createTopic(ctx, created.topic()); err != nil {
		return nil, err
	}
	opening, _ := json.Marshal(map[string]string{"agent_id": agentID, "log_id": logID})
	event := NewEvent(runID, "run_opened", opening)
	if err := p.client.ProduceSync(ctx, event.record(created.topic())).FirstErr(); err != nil {
		return nil, err
	}
	value, _ := json.Marshal(created.life)
	if err := p.announce(ctx, "life:", runID, value); err != nil {
		return nil, err
	}
	created.spokeAt = time.Now()
	// Somebody else may have opened the run at the same time.
	first, err := p.findRun(ctx, runID)
	if err != nil || first.life.LogID == logID {
		return created, err
	}
	_, err = p.admin.DeleteTopic(ctx, created.topic())
	return first, err
}

// findRun returns nil if the catalog has no such run.
func (p *Producer) findRun(ctx context.Context, runID string) (*Run, error) {
	var found *Run
	take := func(key string, value []byte) {
		var each life
		if key == "life:"+runID && found == nil && json.Unmarshal(value, &each) == nil {
			found = &Run{producer: p, life: each} // the first one counts
		} else if found != nil {
			found.takeEntry(key, value)
		}
	}
	err := p.readCatalog(ctx, runID, take, func() bool { return true })
	return found, err
}

// takeEntry takes a record of the catalog that may say where the log goes on.
func (r *Run) takeEntry(key string, value []byte) {
	var entry segments
	if key != "log:"+r.life.RunID || json.Unmarshal(value, &entry) != nil {
		return
	}
	if entry.LogID == r.life.LogID && entry.Base > r.base {
		r.base = entry.Base // of several records with one base the first counts
	}
}

// topic is the last one of the run's log. Only it takes events.
func (r *Run) topic() string {
	name := func(run string) string {
		first := fmt.Sprintf("%s.run.%s.%s", r.producer.prefix, run, r.life.LogID)
		if r.base == 0 {
			return first
		}
		return fmt.Sprintf("%s.%d", first, r.base)
	}
	if full := name(escaped(r.life.RunID)); len(full) <= topicBytesMax {
		return full
	}
	return name(fmt.Sprintf("__%x", sha256.Sum256([]byte(r.life.RunID)))[:34])
}

// escaped is the form of an id in the name of a topic.
func escaped(id string) string {
	var name strings.Builder
	for _, char := range []byte(id) {
		if char == '-' || '0' <= char && char <= '9' || 'A' <= char && char <= 'Z' || 'a' <= char && char <= 'z' {
			name.WriteByte(char)
		} else {
			fmt.Fprintf(&name, "_%02x", char)
		}
	}
	return name.String()
}

// Publish returns when all events are durable, in their order. If it fails, it returns the events that
// are durable, and the others may be published again.
func (r *Run) Publish(ctx context.Context, events []Event) ([]Published, error) {
	var published []Published
	for len(events) > 0 {
		if time.Since(r.spokeAt) > quietTime {
			if err := r.ring(ctx); err != nil {
				return published, err
			}
		}
		accepted, err := r.send(ctx, events)
		published = append(published, accepted...)
		events = events[len(accepted):]
		if err == nil && time.Since(r.spokeAt) > quietTime {
			err = r.ring(ctx)
		}
		r.spokeAt = time.Now()
		switch {
		case errors.Is(err, kerr.MessageTooLarge):
			// The topic is sealed: it refuses records of any size.
			err = r.goOn(ctx, true)
		case errors.Is(err, kerr.UnknownTopicOrPartition):
			// The topic was archived, and deleted.
			err = r.goOn(ctx, false)
		}
		if err != nil {
			return published, err
		}
	}
	return published, nil
}

// send returns the acknowledged events, and the first error. franz-go fails all records of a partition
// behind one that was refused, so those that are left are the last ones.
func (r *Run) send(ctx context.Context, events []Event) ([]Published, error) {
	records := make([]*kgo.Record, len(events))
	for i, event := range events {
		records[i] = event.record(r.topic())
	}
	var accepted []Published
	for i, result := range r.producer.client.ProduceSync(ctx, records...) {
		if result.Err != nil {
			return accepted, result.Err
		}
		accepted = append(accepted, Published{events[i], r.base + result.Record.Offset})
	}
	return accepted, nil
}

func (r *Run) ring(ctx context.Context) error {
	return r.producer.announce(ctx, "bell:", r.life.RunID, nil)
}

// goOn makes the next topic of the log the one to publish to. A sealed topic may be without a record in
// the catalog for a while. A topic that is gone has one, or the run was deleted or ended long ago.
func (r *Run) goOn(ctx context.Context, isSealed bool) error {
	ctx, cancel := context.WithTimeout(ctx, nextTopicTime)
	defer cancel()
	old := r.topic()
	base := r.base
	isDone := func() bool { return r.base > base || !isSealed }
	if err := r.producer.readCatalog(ctx, r.life.RunID, r.takeEntry, isDone); err != nil {
		return fmt.Errorf("the topic after %s: %w", old, err)
	}
	if r.base == base {
		return fmt.Errorf("run %q has no topic: it was deleted, or has ended long ago", r.life.RunID)
	}
	if err := r.producer.createTopic(ctx, r.topic()); err != nil {
		return err
	}
	r.producer.client.PurgeTopicsFromProducing(old)
	return r.ring(ctx)
}
