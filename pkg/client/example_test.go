package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// exampleServer stands in for a node in the examples: it answers as a node with one task, backup, does.
func exampleServer() *httptest.Server {
	const run = `{"id": "20261129T023000.000Z-k3jx", "state": "succeeded", "trigger": "schedule", "scheduled_time": "2026-11-29T02:30:00.000Z"}`

	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")

		switch {
		case r.Method == http.MethodPut:
			body, _ := io.ReadAll(r.Body)
			_, _ = io.WriteString(w, strings.TrimSuffix(string(body), "}")+`, "result": "created", "next": "2026-11-30T02:30:00.000Z"}`)
		case strings.HasSuffix(r.URL.Path, "/runs"):
			_, _ = io.WriteString(w, `{"items": [`+run+`]}`)
		case strings.HasSuffix(r.URL.Path, "/tasks/backup"):
			_, _ = io.WriteString(w, `{"name": "backup", "schedule": "30 2 * * *", "state": "ok", "next": "2026-11-30T02:30:00.000Z"}`)
		default:
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"code": "not_found", "detail": "task default/restore: not found"}`)
		}
	}))
}

// exampleClient returns a client of the server of the examples.
func exampleClient(s *httptest.Server) *client.Client {
	c, err := client.New(client.Config{Server: s.URL})
	if err != nil {
		log.Fatal(err)
	}

	return c
}

// Several nodes of one cluster are separated by commas.
func ExampleNew() {
	c, err := client.New(client.Config{Server: "https://n1:7070,https://n2:7070", Token: "carillon_k3jx5n2mqa7bcdef_secret"})
	if err != nil {
		log.Fatal(err)
	}

	fmt.Println(c.Server(), len(c.Servers()))
	// Output: https://n1:7070 2
}

// Fields that are not set have their defaults.
func ExampleTasksService_Apply() {
	s := exampleServer()
	defer s.Close()

	t, err := exampleClient(s).Tasks.Apply(context.Background(), task.Spec{
		Name: "backup", Schedule: task.Schedules{"30 2 * * *"},
		Action: task.Action{Process: &task.Process{Command: []string{"/usr/bin/backup"}}},
	}, client.ApplyOptions{})
	if err != nil {
		log.Fatal(err)
	}

	fmt.Println(t.Result, t.Name, "with overlap", t.Overlap, "in", t.Timezone)
	// Output: created backup with overlap skip in UTC
}

func ExampleTasksService_Get() {
	s := exampleServer()
	defer s.Close()
	c := exampleClient(s)

	t, err := c.Tasks.Get(context.Background(), "default", "backup")
	fmt.Println(t.Name, t.State, t.Next.Format(time.RFC3339), err)

	_, err = c.Tasks.Get(context.Background(), "default", "restore")
	fmt.Println(errors.Is(err, task.ErrNotFound))
	// Output:
	// backup ok 2026-11-30T02:30:00Z <nil>
	// true
}

func ExampleRunsService_ListByTask() {
	s := exampleServer()
	defer s.Close()

	runs, err := exampleClient(s).Runs.ListByTask(context.Background(), "default", "backup", client.RunListOptions{Limit: 10})
	if err != nil {
		log.Fatal(err)
	}

	for _, r := range runs {
		fmt.Println(r.ScheduledTime.Format(time.RFC3339), r.State)
	}
	// Output: 2026-11-29T02:30:00Z succeeded
}
