import { describe, expect, it } from 'vitest';
import { CodedError } from '../../src/base/index.ts';
import { type KubeClient, type KubeObject, PVS, ReadsAhead } from '../../src/kube/index.ts';

/** Objects that change with each read, and the reads of each. */
function world() {
  const asked: string[] = [];
  let nowMs = 0;
  let answer: (name: string) => Promise<KubeObject | undefined> = (name) =>
    Promise.resolve({ metadata: { name, resourceVersion: String(asked.length) } } as KubeObject);
  const find = (_: unknown, { name }: { name: string }, options?: { isExact?: boolean }) => {
    asked.push(options?.isExact === true ? `${name}!` : name);
    return answer(name);
  };
  const write = () => Promise.reject(new CodedError('KUBE_UNAVAILABLE', 'no answer came'));
  const writes = { patch: write, replace: write, delete: write };
  const client = { find, get: find, ...writes, clock: 'the clock' } as unknown as KubeClient;
  const reads = new ReadsAhead(client, { nowMs: () => nowMs });
  return {
    reads,
    asked,
    find: (name: string, options = {}) => reads.client.find(PVS, { name }, options),
    setAnswer: (given: typeof answer) => (answer = given),
    wait: (ms: number) => (nowMs += ms),
  };
}
const versionOf = (object: KubeObject | undefined): string | undefined =>
  object?.metadata.resourceVersion;

describe('objects that are read ahead', () => {
  it('are given to whoever asks, once', async () => {
    const { reads, asked, find } = world();
    reads.begin(PVS, { name: 'a' });
    reads.begin(PVS, { name: 'a' });
    expect(asked).toEqual(['a']);
    expect(versionOf(await find('a'))).toBe('1');
    expect(asked).toEqual(['a']);
    expect(versionOf(await find('a'))).toBe('2');
    expect(versionOf(await reads.client.get(PVS, { name: 'b' }))).toBe('3');
  });

  it('are read as whoever asks wants them read', async () => {
    const { reads, asked, find } = world();
    reads.begin(PVS, { name: 'a' }, { isExact: true });
    await find('a');
    expect(asked).toEqual(['a!', 'a']);
    reads.begin(PVS, { name: 'b' }, { isExact: true });
    await find('b', { isExact: true });
    expect(asked).toEqual(['a!', 'a', 'b!']);
  });

  it('are asked for again where the look ahead has failed, or has found nothing', async () => {
    const { reads, asked, find, setAnswer } = world();
    setAnswer(() => Promise.reject(new CodedError('KUBE_UNAVAILABLE', 'away')));
    reads.begin(PVS, { name: 'a' });
    setAnswer(() => Promise.resolve(undefined));
    reads.begin(PVS, { name: 'b' });
    setAnswer((name) => Promise.resolve({ metadata: { name } } as KubeObject));
    expect([await find('a'), await find('b')]).toMatchObject([
      { metadata: { name: 'a' } },
      { metadata: { name: 'b' } },
    ]);
    expect(asked).toEqual(['a', 'b', 'a', 'b']);
    setAnswer(() => Promise.reject(new CodedError('KUBE_FORBIDDEN', 'no')));
    reads.begin(PVS, { name: 'c' });
    await expect(find('c')).rejects.toThrow('no');
  });

  it('are asked for again where they have become too old, also those that nobody came for', async () => {
    const { reads, find, wait } = world();
    reads.begin(PVS, { name: 'a' });
    wait(5001);
    expect(versionOf(await find('a'))).toBe('2');
    for (let i = 0; i < 64; i++) reads.begin(PVS, { name: `n${i}` });
    wait(5001);
    reads.begin(PVS, { name: 'late' });
    expect(versionOf(await find('late'))).toBe('67');
  });

  it.each(['patch', 'replace', 'delete'] as const)(
    'are asked for again after a %s of the same client',
    async (verb) => {
      const { reads, find } = world();
      reads.begin(PVS, { name: 'a' });
      reads.begin(PVS, { name: 'a' }, { isExact: true });
      const object = { metadata: { name: 'a' } } as KubeObject;
      const isWhole = verb === 'replace';
      const write = Reflect.get(reads.client, verb) as (...given: unknown[]) => Promise<unknown>;
      await write(PVS, isWhole ? object : object.metadata, {}).catch(() => undefined);
      expect(versionOf(await find('a'))).toBe('3');
      expect(versionOf(await find('a', { isExact: true }))).toBe('4');
    },
  );

  it('are asked for again by whoever has waited for a change of the object', async () => {
    const { reads, find } = world();
    reads.begin(PVS, { name: 'a' }, { isExact: true });
    expect(versionOf(await find('a'))).toBe('2');
    expect(versionOf(await find('a', { isExact: true }))).toBe('3');
  });

  it('are as many as are allowed', async () => {
    const { reads, asked } = world();
    for (let i = 0; i < 200; i++) reads.begin(PVS, { name: `n${i}` });
    await expect.poll(() => asked.length).toBe(64);
  });

  it('keep nobody who is told to stop', async () => {
    const { reads, find, setAnswer } = world();
    setAnswer(() => new Promise(() => undefined));
    reads.begin(PVS, { name: 'a' });
    const abort = new AbortController();
    const waiting = find('a', { signal: abort.signal });
    abort.abort(new Error('stop'));
    await expect(waiting).rejects.toThrow('stop');
  });

  it('are all that is changed about a client', () => {
    const { reads } = world();
    expect(reads.client.clock).toBe('the clock');
  });
});
