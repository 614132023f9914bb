// Package imports is "carillon import": it makes tasks of crontabs, of Kubernetes' CronJobs and
// of systemd's timers, shows what it could not take over, and applies the rest.
package imports
