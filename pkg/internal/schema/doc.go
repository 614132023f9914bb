// Package schema describes a task in JSON Schema, from its Go type: the OpenAPI
// document and the schema for editors are both made of it, so that what they say
// is one thing. What the Go type does not say (defaults, ranges, the values that
// are possible) is added from the constants that package task checks with.
//
// A schema says less than the checks of packages task and schedule: what it accepts
// may yet be refused, such as a cron expression with a mistake in it.
package schema
