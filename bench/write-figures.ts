/**
 * `npm run build:figures` writes the figures of README.md and docs/performance.md again from
 * bench/results/.
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { type CountedRequests, type Report, withFigures } from './report.ts';

const at = (path: string): URL => new URL(`../${path}`, import.meta.url);
const report = JSON.parse(readFileSync(at('bench/results/report.json'), 'utf8')) as Report;
const s3 = readFileSync(at('bench/results/s3.md'), 'utf8');
const requests = JSON.parse(
  readFileSync(at('bench/results/requests.json'), 'utf8'),
) as CountedRequests;
for (const page of ['README.md', 'docs/performance.md']) {
  writeFileSync(at(page), withFigures(readFileSync(at(page), 'utf8'), { report, s3, requests }));
}
