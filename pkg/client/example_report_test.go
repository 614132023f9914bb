package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// A program makes sure that a task exists, starts it once a day, and waits for the run. It survives the loss of the node that it
// talks to, if CARILLON_SERVER names several: https://n1:7070,https://n2:7070.
func Example_report() { // main
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()

	c, err := client.New(client.Config{Server: os.Getenv("CARILLON_SERVER"), Token: os.Getenv("CARILLON_TOKEN")})
	if err != nil {
		log.Fatal(err)
	}
	if err := makeReport(ctx, c, "report-of-"+time.Now().Format(time.DateOnly), os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// makeReport runs the task report once for a key, however often it is called, and prints how the run ended.
func makeReport(ctx context.Context, c *client.Client, key string, out io.Writer) error {
	report := task.Spec{
		Name: "report", Schedule: task.Schedules{"@manual"}, Timeout: task.Duration(5 * time.Minute),
		Action: task.Action{Process: &task.Process{Command: []string{"/bin/echo", "the report"}}},
	}

	// Applying the same task twice changes nothing, so a lost answer is no reason to give up.
	_, err := c.Tasks.Apply(ctx, report, client.ApplyOptions{})
	for errors.Is(err, task.ErrUnknown) && ctx.Err() == nil {
		_, err = c.Tasks.Apply(ctx, report, client.ApplyOptions{})
	}
	if err != nil {
		return err
	}

	started, err := c.Tasks.TriggerWith(ctx, "default", "report", client.TriggerRequest{IdempotencyKey: key}, 0)
	if err != nil {
		return err
	}

	run, err := c.Runs.Wait(ctx, "default", "report", started.ID)
	if err == nil {
		_, err = fmt.Fprintf(out, "run %s: %s\n", run.ID, run.State)
	}

	return err
}
