import { describe, expect, it } from 'vitest';
import type { Manifest, ManifestId } from '../../src/repository/index.ts';
import { SnapshotIds } from '../../src/snapshot/index.ts';

const manifest = (id: string): Manifest => ({
  id: id as ManifestId,
  labels: { hostname: 'here', username: 'me', path: `/${id.slice(0, 2)}` },
  modifiedNs: 0n,
  data: {},
});
const idsOf = (...ids: string[]): SnapshotIds => new SnapshotIds(ids.map(manifest));
const [A, B, C] = ['aaaa1111', 'aaaa2222', 'bbbb3333'].map((id) => id.padEnd(32, '0')) as [
  string,
  string,
  string,
];

describe('a snapshot', () => {
  it('is found by its ID, and by the first digits that no other has', () => {
    const ids = idsOf(C, A, B);
    for (const id of [A, B, C]) expect(ids.find(id)?.id).toBe(id);
    expect(ids.find('aaaa1')?.id).toBe(A);
    expect(ids.find('bbbb')?.id).toBe(C);
    expect(ids.find('cccc')).toBeUndefined();
    expect(ids.find('bbbbz')).toBeUndefined();
  });

  it('is not guessed: all that begin so are named, and few digits are refused', () => {
    expect(() => idsOf(A, B, C).find('aaaa')).toThrow(
      `aaaa is the beginning of 2 snapshots: ${A} (me@here:/aa), ${B} (me@here:/aa)`,
    );
    expect(() => idsOf(A, B, C).find('bbb')).toThrow(
      expect.objectContaining({ code: 'SHORT_SNAPSHOT_ID' }),
    );
    const many = Array.from({ length: 9 }, (_, i) => `cccc${i}`.padEnd(32, '0'));
    expect(() => idsOf(...many).find('cccc')).toThrow(/9 snapshots: .* and 4 more/);
  });
});

it('as many digits as tell all apart', () => {
  expect(idsOf(A, B, C).digitsToTellApart(4)).toBe(5);
  expect(idsOf(A, B, C).digitsToTellApart(8)).toBe(8);
  expect(idsOf().digitsToTellApart(8)).toBe(8);
});

it('a thousand names among 100,000 cost one list', () => {
  const all = Array.from({ length: 100_000 }, (_, i) => `${i}`.padStart(6, '0').padEnd(32, 'f'));
  let reads = 0;
  const counted = all.map((id) => ({
    ...manifest(id),
    get id() {
      reads++;
      return id as ManifestId;
    },
  }));
  const ids = new SnapshotIds(counted);
  for (const id of all.slice(0, 1000)) expect(ids.find(id.slice(0, 12))).toBeDefined();
  expect(reads).toBe(all.length);
});
