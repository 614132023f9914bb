// Package garbage sets how much the heap of the process may grow before Go collects
// garbage: more than by default while the heap is small, less while nothing happens.
//
// It is for a process that has little in memory and makes much garbage when it is
// busy. A user who sets GOGC decides alone; GOMEMLIMIT holds in any case.
package garbage
