// Package client is the Go client of Carillon's HTTP API. It contains the types of requests and answers, and a
// Client with one service for each resource:
//
//	c, err := client.New(client.Config{Server: "https://n1:7070", Token: token})
//	...
//	t, err := c.Tasks.Get(ctx, "default", "backup")
//	runs, err := c.Runs.ListByTask(ctx, "default", "backup", client.RunListOptions{Limit: 10})
//
// Config.Server can name several nodes of the cluster. A call goes to another node only if nothing can happen twice.
//
// Every call ends within Config.Timeout, except streams of output and events. A call that writes is sent once and never
// repeated, unless it surely was not sent or has an idempotency key. Redirects are not followed, so the token reaches only
// the configured servers.
//
// Every error of a call is an *Error, whether it comes from the server or the network, or a *task.Error for an invalid
// argument. Use errors.Is with the errors of package task.
//
// A write whose answer was lost returns task.ErrUnknown. It may have been applied, or may still be applied
// later. Read the resource before you decide what to do.
package client
