// Publishes a run to Runfold without Runfold's library, by the contract in schemas/asyncapi.json.
//
// Each line of standard input is an event: {"type": "user_message", "data": {"message": "Hello"}}.
// Each acknowledged event is printed with its offset in the run.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
)

// lineBytesMax is the limit of a record, which has the event and its headers.
const lineBytesMax = recordBytesMax - 64*1024

func main() {
	log.SetFlags(0)
	brokers := flag.String("kafka", "127.0.0.1:9092", "the address of a broker")
	prefix := flag.String("prefix", "runfold", "the prefix of the installation's topics")
	agentID := flag.String("agent", "", "the agent of the run")
	runID := flag.String("run", "", "the id of the run; it is opened unless it exists")
	flag.Parse()
	if *agentID == "" || *runID == "" {
		log.Fatal("-agent and -run are required")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := publishLines(ctx, *brokers, *prefix, *agentID, *runID); err != nil {
		log.Fatal(err)
	}
}

func publishLines(ctx context.Context, brokers, prefix, agentID, runID string) error {
	producer, err := Connect(ctx, brokers, prefix)
	if err != nil {
		return err
	}
	defer producer.Close()
	run, err := producer.OpenRun(ctx, runID, agentID)
	if err != nil {
		return err
	}
	input := bufio.NewReaderSize(os.Stdin, 64*1024)
	for {
		// All lines that are there go together, so that a fast writer does not wait for each of them.
		events, err := readEvents(input, runID)
		if err != nil && err != io.EOF {
			return err
		}
		published, publishErr := run.Publish(ctx, events)
		for _, each := range published {
			fmt.Printf("%d %s\n", each.Offset, each.Event.Type)
		}
		if publishErr != nil {
			return publishErr
		}
		if err == io.EOF {
			return nil
		}
	}
}

// readEvents waits for one line, and takes those behind it that are there already.
func readEvents(input *bufio.Reader, runID string) ([]Event, error) {
	var events []Event
	for {
		line, err := input.ReadBytes('\n')
		if len(line) > lineBytesMax {
			return nil, fmt.Errorf("an event has at most %d bytes", lineBytesMax)
		}
		if len(line) > 0 {
			event := NewEvent(runID, "", json.RawMessage("{}"))
			if err := json.Unmarshal(line, &event); err != nil {
				return nil, fmt.Errorf("the line %q: %w", line, err)
			}
			events = append(events, event)
		}
		if err != nil || input.Buffered() == 0 {
			return events, err
		}
	}
}
