// Package client speaks Carillon's HTTP API: the Go types of what goes over the
// wire, and a Client with one method per route.
//
// What it guarantees: every call ends (Config.Timeout); a call that writes is
// sent once and never again; redirects are not followed, so the token reaches
// only the server that it was meant for; an error is an *Error, whether the
// server sent it or the network did, and errors.Is tells what to branch on.
//
// What it does not: a write whose answer got lost is task.ErrUnknown. It may
// have been applied, or may yet be. Read, then decide.
package client
