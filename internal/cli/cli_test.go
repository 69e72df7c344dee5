package cli

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestParseDuration(t *testing.T) {
	for in, want := range map[string]time.Duration{
		"90s": 90 * time.Second, "2m": 2 * time.Minute, "500ms": 500 * time.Millisecond,
		"120": 2 * time.Minute, "0": 0, "0.5": 500 * time.Millisecond, "1m30s": 90 * time.Second,
	} {
		if got, err := ParseDuration(in); err != nil || got != want {
			t.Errorf("%q = %v, %v, want %v", in, got, err, want)
		}
	}
	for _, in := range []string{"", "x", "-1", "-5s", "1e99", "NaN", "Inf", "9999999h"} {
		if d, err := ParseDuration(in); err == nil {
			t.Errorf("%q was taken as %v", in, d)
		}
	}
}

func TestCode(t *testing.T) {
	var out bytes.Buffer
	err := fmt.Errorf("set web/s3 maint: %w", Fail(4, "lbctl status", errors.New("no such server")))
	if c := Code("lbctl", err, &out); c != 4 {
		t.Errorf("code %d", c)
	}
	if want := "lbctl: set web/s3 maint: no such server\nhint: lbctl status\n"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
	if c := Code("lbctl", errors.New("x"), &out); c != Failed {
		t.Errorf("plain error: %d", c)
	}
	if c := Code("lbctl", nil, &out); c != Done {
		t.Errorf("nil: %d", c)
	}
}

func TestLogger(t *testing.T) {
	var out bytes.Buffer
	log, err := Logger(&out, "info")
	if err != nil {
		t.Fatal(err)
	}
	log.Debug().Str("event", "poll").Send()
	log.Info().Str("event", "transition").Send()
	if got := out.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, `"event":"transition","ts":"20`) {
		t.Errorf("%s", got)
	}
	if _, err := Logger(&out, "loud"); err == nil {
		t.Error("level loud was taken")
	}
}
