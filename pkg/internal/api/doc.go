// Package api is Carillon's HTTP API. It runs on every node and keeps no state
// of its own: what it answers it read from etcd, linearizably, for this request.
//
// What it guarantees: a body, a parameter or a header that is not understood in
// full is refused, with nothing written. A change that is acknowledged is in
// etcd. A change is sent to etcd once: if nobody knows what became of it, the
// answer is 504 with the id of what may have been written, and whoever asked
// decides. A change that certainly did not happen, because the task changed in
// between, is decided again from what is there now, a few times, unless the
// request said If-Match. Every error is a problem (RFC 9457) with a code.
//
// What it does not: a list is not a snapshot over its pages, and what a list
// says of a task's runs was read a moment after the task.
//
// It touches all keys, through package store alone. How it fails: without etcd
// every route under /v1 answers 503 with Retry-After after a few seconds.
//
// This package is the server: it authenticates callers, bounds what they may try, describes and
// routes the operations, and wires the handlers, which are in a package for each resource below it.
//
// OpenAPI is described by huma, from the types of package client and of package
// task. Bodies are decoded by package task, not by huma, so that the API, the
// command line and files refuse the same things in the same words.
package api
