// Package schema describes a task as JSON Schema, derived from its Go type. Both the OpenAPI document and the
// schema for editors are built from it, so that they agree. What the Go type does not contain (defaults, ranges,
// allowed values) is added from the constants that package task enforces.
//
// A schema is less strict than the checks of packages task and schedule. They may reject what it accepts, such as a
// cron expression with an error.
package schema
