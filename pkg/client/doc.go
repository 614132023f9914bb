// Package client speaks Carillon's HTTP API. It has the Go types of requests and
// answers, and a Client with one service for each resource:
//
//	c, err := client.New(client.Config{Server: "https://n1:7070", Token: token})
//	...
//	t, err := c.Tasks.Get(ctx, "default", "backup")
//	runs, err := c.Runs.ListByTask(ctx, "default", "backup", client.RunListOptions{Limit: 10})
//
// Every call ends after Config.Timeout at the latest, except streams of logs and
// events. A call that writes is sent once, and never again. Redirects are not followed,
// so that the token reaches only the server that it is meant for. Every error of a call
// is an *Error, whether the server or the network failed, or it is a *task.Error of
// arguments that cannot be valid; use errors.Is with the errors of package task.
//
// A write whose answer was lost returns task.ErrUnknown: it may have been applied, or
// may be applied later. Read the resource before you decide what to do.
package client
