import { gunzipSync } from 'node:zlib';
import { describe, expect, it } from 'vitest';
import { encodeJsonGzip, encodeListsGzip } from '../../src/archive/json-file.ts';

describe('lists of names', () => {
  it('are the same object as if they were written at once, however long they are', async () => {
    const many = Array.from({ length: 20_000 }, (_, at) => `space/"<${at}>\u2028`);
    for (const lists of [
      [],
      [['v1/Pod', []]],
      [
        ['apps/v1/Deployment', many],
        ['v1/Pod', ['a/b']],
        ['v1/Secret', many.slice(1)],
      ],
    ] as [string, string[]][][]) {
      const asked: string[] = [];
      const pieces = lists.map(([name, texts]): [string, Iterable<string>] => [
        name,
        texts.values().map((text) => (asked.push(text), text)),
      ]);
      const bytes = await encodeListsGzip(pieces);
      const whole = gunzipSync(await encodeJsonGzip(Object.fromEntries(lists)));
      expect(gunzipSync(bytes).equals(whole)).toBe(true);
      expect(asked.length).toBe(lists.flatMap(([, texts]) => texts).length);
    }
  });
});
