import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { isCode, silentLogger, systemClock } from '../../../src/base/index.ts';
import { StateFile } from '../../../src/dev/api-server/state-file.ts';
import { Store } from '../../../src/dev/api-server/store.ts';
import { CONFIG_MAPS } from '../../../src/kube/index.ts';
import { canMount, mountSmallDisk } from '../../support/full-disk.ts';
import { tempDirectory } from '../../support/kopia.ts';
import { recordingLogger } from '../../support/repositories.ts';

const work = tempDirectory('dev-state');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));

let count = 0;
const newPath = (): string => join(work, `state-${count++}.jsonl`);

function open(path: string, logger = silentLogger) {
  const { file, saved } = StateFile.open({ path, logger });
  const store = new Store(systemClock, {
    saved,
    record: (change) => {
      file.append(change);
    },
  });
  file.attach(() => store.saved);
  return {
    file,
    store,
    put: (name: string, value = 'b') =>
      store.create(CONFIG_MAPS, 'app', { metadata: { name }, data: { a: value } } as never),
    names: () => store.list(CONFIG_MAPS).map(({ metadata }) => metadata.name),
  };
}

describe('the state of the embedded cluster', () => {
  it('is there again after a process that was killed between two changes', () => {
    const path = newPath();
    const first = open(path);
    for (const name of ['one', 'two', 'three']) first.put(name);
    const one = first.store.get(CONFIG_MAPS, 'app', 'one');
    first.store.update(CONFIG_MAPS, { ...one, data: { a: 'ü\u2028"' } });
    first.store.delete(CONFIG_MAPS, 'app', 'two');
    const { saved } = first.store;
    // The first store stays open, as in a killed process.
    const second = open(path);
    expect(second.store.saved).toEqual(saved);
    expect(second.names()).toEqual(['one', 'three']);
    expect(Number(second.put('four').metadata.resourceVersion)).toBe(saved.version + 1);
    expect(fs.statSync(path).mode & 0o777).toBe(0o600);
    // An earlier watch cannot know the changes that it missed.
    const watch = (): unknown =>
      second.store.watch(CONFIG_MAPS, {}, saved.version - 1, () => undefined);
    expect(watch).toThrow(/too old/);
    first.file.close();
    second.file.close();
  });

  it('leaves out the half of a last change that a kill cut, keeps a copy and says so', () => {
    const path = newPath();
    const first = open(path);
    first.put('whole');
    first.put('half');
    first.file.close();
    const text = fs.readFileSync(path);
    fs.writeFileSync(path, text.subarray(0, -20));
    const logger = recordingLogger();
    const second = open(path, logger);
    expect(second.names()).toEqual(['whole']);
    expect(logger.messages).toEqual([
      'the last change of the cluster was only half written and is left out; the copy holds the file as it was',
    ]);
    const [copy = ''] = fs.readdirSync(work).filter((name) => name.endsWith('.damaged'));
    expect(fs.readFileSync(join(work, copy))).toEqual(text.subarray(0, -20));
    expect(fs.statSync(join(work, copy)).mode & 0o777).toBe(0o600);
    second.put('half');
    second.file.close();
    const third = open(path);
    expect(third.names()).toEqual(['half', 'whole']);
    third.file.close();
  });

  it.each<[string, (lines: string[]) => string, RegExp]>([
    ['a changed byte', (lines) => lines.join('\n').replace('"one"', '"oNe"'), /line 2 is damaged/],
    [
      'a line of another kind',
      ([first = '', ...rest]) => [first, first, ...rest].join('\n'),
      /line 2/,
    ],
    ['no first line', ([, ...rest]) => rest.join('\n'), /does not hold the state of a cluster/],
    ['nothing in it', () => '', /no first line/],
    ['zeros', () => `${'\0'.repeat(100)}\n`, /line 1 is damaged/],
  ])('is refused and left as it is with %s', (_what, damage, why) => {
    const path = newPath();
    const first = open(path);
    first.put('one');
    first.put('two');
    first.file.close();
    const damaged = damage(fs.readFileSync(path, 'utf8').split('\n'));
    fs.writeFileSync(path, damaged);
    let error: unknown;
    try {
      open(path);
    } catch (thrown) {
      error = thrown;
    }
    expect(isCode(error, 'DAMAGED_STATE')).toBe(true);
    expect((error as Error).message).toMatch(why);
    expect((error as Error).message).toContain('Move the file away');
    expect(fs.readFileSync(path, 'utf8')).toBe(damaged);
  });

  it('is not read through a link, nor from what is no file', () => {
    const path = newPath();
    fs.symlinkSync('/etc/hostname', path);
    expect(() => open(path)).toThrow(/cannot be read/);
    const directory = newPath();
    fs.mkdirSync(directory);
    expect(() => open(directory)).toThrow(/cannot be read/);
  });

  it('stays small: changes of the same objects do not pile up', () => {
    const path = newPath();
    const { store, put, file, names } = open(path);
    put('large', 'x'.repeat(100_000));
    for (let i = 0; i < 200; i++) {
      const before = store.get(CONFIG_MAPS, 'app', 'large');
      const data = { a: String(i).padEnd(100_000, 'x') };
      store.update(CONFIG_MAPS, { ...before, data });
      file.tidy();
      expect(fs.statSync(path).size).toBeLessThan(5 << 20);
    }
    put('later');
    file.close();
    const again = open(path);
    expect(again.names()).toEqual(names());
    expect(again.store.saved).toEqual(store.saved);
    again.file.close();
  });

  it.skipIf(!canMount)('refuses changes on a full disk, and nothing else is lost', () => {
    using disk = mountSmallDisk(1 << 20);
    const path = join(disk.path, 'state.jsonl');
    const { store, put, file, names } = open(path);
    put('first');
    disk.fill();
    expect(() => {
      for (let i = 0; i < 100; i++) put(`more-${i}`, 'x'.repeat(1000));
    }).toThrow(/ENOSPC/);
    const kept = names();
    fs.rmSync(join(disk.path, 'filler'));
    put('later');
    file.close();
    const again = open(path);
    // The file has no trace of the refused change.
    expect(fs.readdirSync(disk.path)).toEqual(['state.jsonl']);
    expect(again.names()).toEqual([...kept, 'later'].sort());
    expect(again.store.saved).toEqual(store.saved);
    again.file.close();
  });
});
