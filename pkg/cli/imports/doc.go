// Package imports implements "carillon import". It converts crontabs, Kubernetes CronJobs, systemd timers and Dkron
// jobs to tasks, reports what it cannot convert, and applies the rest.
package imports
