package inflight

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"net/url"
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"lbdrain/internal/handshake"
)

// httpSource asks an application for its own count.
type httpSource struct {
	named
	door   *door
	path   string
	metric string // "" for the only one there is
}

func newHTTP(value string) (*httpSource, error) {
	u, err := url.Parse(value)
	switch {
	case err != nil:
		return nil, err
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return nil, errors.New("want a URL that begins with http:// or https://")
	case u.Fragment != "" && !model.LegacyValidation.IsValidMetricName(u.Fragment):
		return nil, fmt.Errorf("%q is not the name of a metric", u.Fragment)
	}
	base := url.URL{Scheme: u.Scheme, User: u.User, Host: u.Host}
	return &httpSource{
		named: named{"http"}, door: newDoor(base.String(), ""),
		path: u.RequestURI(), metric: u.Fragment,
	}, nil
}

// Read asks once.
func (h *httpSource) Read(ctx context.Context) Reading {
	body, err := h.door.call(ctx, "GET", h.path)
	if err != nil {
		return failed(err)
	}
	n, err := parseNumber(body, h.metric)
	if err != nil {
		return unknown("GET %s: %v", h.path, err)
	}
	return Reading{Count: n}
}

// parseNumber reads a body that is nothing but a number, or Prometheus text.
// There the metric is named, or it is the only one; it is a gauge or of no
// declared type, and its series are summed.
func parseNumber(body []byte, metric string) (handshake.Count, error) {
	text := strings.TrimSpace(string(body))
	if metric == "" {
		if f, err := strconv.ParseFloat(text, 64); err == nil {
			return whole(f)
		}
	}
	if text == "" {
		return handshake.Count{}, errors.New("the answer is empty")
	}
	// A last line without its end is half a line: the number may go on.
	if !bytes.HasSuffix(body, []byte("\n")) {
		return handshake.Count{}, errors.New("neither a number nor Prometheus text that ends in a newline")
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(body))
	if err != nil {
		return handshake.Count{}, fmt.Errorf("neither a number nor Prometheus text: %w", err)
	}
	family := families[metric]
	if metric == "" {
		if len(families) != 1 {
			return handshake.Count{}, fmt.Errorf("%d metrics, and none is chosen: add #NAME to the URL", len(families))
		}
		for _, family = range families {
		}
	}
	if family == nil || len(family.GetMetric()) == 0 {
		return handshake.Count{}, fmt.Errorf("no metric %s in the answer", metric)
	}
	return sum(family)
}

func sum(family *dto.MetricFamily) (handshake.Count, error) {
	total := handshake.Known(0)
	for _, m := range family.GetMetric() {
		var f float64
		switch family.GetType() {
		case dto.MetricType_GAUGE:
			f = m.GetGauge().GetValue()
		case dto.MetricType_UNTYPED:
			f = m.GetUntyped().GetValue()
		default:
			return handshake.Count{}, fmt.Errorf("metric %s is a %s, want a gauge",
				family.GetName(), strings.ToLower(family.GetType().String()))
		}
		n, err := whole(f)
		if err != nil {
			return handshake.Count{}, fmt.Errorf("metric %s: %w", family.GetName(), err)
		}
		total = total.Add(n)
	}
	return total, nil
}

// maxCount is the largest number that is believed to be a count. A gauge that
// was decremented once too often reads 2^64-1, and sums must not wrap to zero.
const maxCount = 1 << 40

// whole takes a count from a float; NaN, negative and fractional numbers are none.
func whole(f float64) (handshake.Count, error) {
	if f >= 0 && f <= maxCount && f == math.Trunc(f) {
		return handshake.Known(uint64(f)), nil
	}
	return handshake.Count{}, fmt.Errorf("%v is no count", f)
}
