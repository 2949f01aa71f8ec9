import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

/**
 * Reads the definitions of Velero's metrics out of its source. The first argument is a tree of
 * Velero's.
 */
const root = process.argv[2];
if (root === undefined) throw new Error('name a tree of Velero, such as one of the Go module cache');
const text = readFileSync(join(root, 'pkg/metrics/metrics.go'), 'utf8');

const constants = new Map(
  [...text.matchAll(/^\s*(\w+)\s*=\s*"([^"]*)"$/gm)].map(([, name = '', value = '']) => [
    name,
    value,
  ]),
);
const constantOf = (name: string): string => {
  const value = constants.get(name);
  if (value === undefined) throw new Error(`there is no constant ${name}`);
  return value;
};

const UNITS: Readonly<Record<string, number>> = { Second: 1, Minute: 60, Hour: 3600 };
const bucketsOf = (options: string): number[] | undefined => {
  const found = [...options.matchAll(/toSeconds\((\d+) \* time\.(\w+)\)/g)];
  if (found.length === 0) return undefined;
  return found.map(([, count, unit = '']) => Number(count) * (UNITS[unit] ?? NaN));
};

const DEFINITION =
  /prometheus\.New(Gauge|Counter|Histogram)(?:Vec)?\(\s*prometheus\.\w+Opts\{([\s\S]*?)\n\t{4}\},(?:\s*\[\]string\{([^}]*)\},)?/g;
const metrics = [...text.matchAll(DEFINITION)].map(([, type = '', options = '', labels = '']) => {
  const [, namespace = ''] = /Namespace:\s*(\w+),/.exec(options) ?? [];
  const [, name = ''] = /Name:\s*(\w+),/.exec(options.replace(/Namespace:.*/, '')) ?? [];
  const buckets = bucketsOf(options);
  return {
    name: `${constantOf(namespace)}_${constantOf(name)}`,
    type: type.toLowerCase(),
    labels: labels.split(',').flatMap((label) => (label.trim() ? [constantOf(label.trim())] : [])),
    ...(buckets && { buckets }),
  };
});
const expected = text.split(/prometheus\.New\w+\(/).length - 1;
if (metrics.length !== expected) throw new Error(`${metrics.length} of ${expected} were read`);
metrics.sort((a, b) => (a.name < b.name ? -1 : 1));
const file = join(import.meta.dirname, 'metrics.json');
writeFileSync(file, `${JSON.stringify(metrics, undefined, 2)}\n`);
