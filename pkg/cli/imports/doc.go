// Package imports implements "carillon import". It converts crontabs, Kubernetes CronJobs and systemd timers to
// tasks, reports what it cannot convert, and applies the rest.
package imports
