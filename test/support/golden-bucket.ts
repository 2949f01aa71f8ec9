import { readdirSync, readFileSync } from 'node:fs';
import { gunzipSync, gzipSync } from 'node:zlib';
import type { Bucket } from '../../src/blob/index.ts';

const golden = new URL('../golden/velero/archive/', import.meta.url);

export const goldenFile = (name: string): Buffer => readFileSync(new URL(name, golden));
/** Parsed JSON. All integers in these files fit into a double. */
export const goldenJson = (name: string): unknown => JSON.parse(goldenFile(name).toString());

/** Puts golden files of the real Velero under `folder` into a bucket, compressed as before. */
export async function putGolden(bucket: Bucket, name: string, folder: string): Promise<void> {
  for (const file of readdirSync(new URL(`${name}/`, golden))) {
    if (!file.endsWith('.json')) continue;
    const bytes = goldenFile(`${name}/${file}`);
    const stem = file.slice(0, -'.json'.length);
    if (file === 'velero-backup.json') await bucket.put(`${folder}${file}`, [bytes]);
    else {
      const key = stem.endsWith('-results') ? `${folder}${stem}.gz` : `${folder}${file}.gz`;
      await bucket.put(key, [gzipSync(bytes)]);
    }
  }
}

/** Keys that the real Velero made, without the folder, and without our own file. */
export const goldenKeys = (name: string): string[] =>
  goldenFile(`${name}/files.txt`)
    .toString()
    .trim()
    .split('\n')
    .map((line) => line.trim().split(' ')[1] ?? '');

export async function readAll(bucket: Bucket, key: string): Promise<Buffer> {
  return Buffer.concat(await Array.fromAsync(bucket.get(key)));
}

/** JSON of a compressed object, as text without its line feed. */
export async function readJsonGzip(bucket: Bucket, key: string): Promise<string> {
  return gunzipSync(await readAll(bucket, key)).toString();
}
