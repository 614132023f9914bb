//go:build race

package racetest

const raceDetector = true
