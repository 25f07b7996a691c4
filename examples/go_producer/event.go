package main

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Event is one event of a run. event.schema.json has what `data` holds for each type.
type Event struct {
	ID        string          `json:"event_id"`
	RunID     string          `json:"run_id"`
	Timestamp string          `json:"timestamp"`
	Type      string          `json:"type"`
	TurnID    string          `json:"turn_id,omitempty"`
	Data      json.RawMessage `json:"data"`
}

// NewEvent has a new id, and happens now.
func NewEvent(runID, kind string, data json.RawMessage) Event {
	return Event{
		ID:        uuid.Must(uuid.NewV7()).String(),
		RunID:     runID,
		Timestamp: time.Now().UTC().Format(time.RFC3339Nano),
		Type:      kind,
		Data:      data,
	}
}

// record has CloudEvents' headers, in binary mode.
func (e Event) record(topic string) *kgo.Record {
	value, err := json.Marshal(e)
	if err != nil {
		panic(err) // Data is valid JSON.
	}
	return &kgo.Record{
		Topic: topic,
		Key:   []byte(e.RunID),
		Value: value,
		Headers: []kgo.RecordHeader{
			{Key: "ce_specversion", Value: []byte("1.0")},
			{Key: "ce_id", Value: []byte(e.ID)},
			{Key: "ce_type", Value: []byte(e.Type)},
			{Key: "ce_source", Value: []byte("examples/go_producer")},
			{Key: "ce_time", Value: []byte(e.Timestamp)},
			{Key: "content-type", Value: []byte("application/json")},
		},
	}
}
