import * as fs from 'node:fs';
import { join } from 'node:path';
import type { ContentId, IndexEntry, Repository } from '../../src/repository/index.ts';
import { noise } from './noise.ts';

/** The same numbers for a seed: at least 0, less than `below`. */
export function numbers(seed: string): (below: number) => number {
  let [bytes, at] = [noise(seed, 1 << 16), 0];
  return (below) => {
    if (at + 4 > bytes.length) [bytes, at] = [noise(`${seed}+`, 1 << 16), 0];
    const value = bytes.readUInt32LE(at);
    at += 4;
    return value % below;
  };
}

/** The path of a blob in a directory. Repositories shard their names. */
export function pathOfBlob(repo: string, id: string): string {
  const names = fs.readdirSync(repo, { recursive: true }).map(String);
  const name = names.find((each) => each.replaceAll('/', '') === `${id}.f`);
  if (name === undefined) throw new Error(`no blob ${id}`);
  return join(repo, name);
}

/** Packs with their entries, without packs of manifests or with an ineligible entry. */
export function packsOf(
  repository: Repository,
  isEligible: (id: ContentId) => boolean,
): Map<string, IndexEntry[]> {
  const packs = new Map<string, IndexEntry[]>();
  const refused = new Set<string>();
  for (const entry of repository.contents.entries()) {
    const { packBlobId, contentId, deleted } = entry;
    if (deleted) continue;
    if (contentId.startsWith('m') || !isEligible(contentId)) refused.add(packBlobId);
    const entries = packs.get(packBlobId);
    if (entries) entries.push(entry);
    else packs.set(packBlobId, [entry]);
  }
  for (const id of refused) packs.delete(id);
  return packs;
}

/** Flips one bit in the bytes of a content. */
export function flip(path: string, { packOffset, packedLength }: IndexEntry, at: number): void {
  const file = fs.openSync(path, 'r+');
  const byte = Buffer.alloc(1);
  const position = packOffset + (at % packedLength);
  fs.readSync(file, byte, 0, 1, position);
  byte[0] = (byte[0] as number) ^ (1 << (at % 8));
  fs.writeSync(file, byte, 0, 1, position);
  fs.closeSync(file);
}
