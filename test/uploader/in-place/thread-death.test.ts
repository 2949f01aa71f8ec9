import { execFileSync } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { messageOf, silentLogger } from '../../../src/base/index.ts';
import type { DirectoryEntry } from '../../../src/snapshot/index.ts';
import { type InPlaceCounters, restoreTreeInPlace } from '../../../src/uploader/index.ts';
import type { Repository } from '../../../src/repository/index.ts';
import { createThreadPool } from '../../../src/workers/index.ts';
import { assertSameTree, tempDirectory } from '../../support/kopia.ts';
import { noise } from '../../support/noise.ts';
import { backUp, createTest, openTest, restore } from '../../support/repositories.ts';

const work = tempDirectory('thread-death-in-place');
const at = (...names: string[]): string => join(work, ...names);
const MIB = 1 << 20;
let root: DirectoryEntry;

beforeAll(async () => {
  fs.mkdirSync(at('tree'));
  for (const name of ['a', 'b']) fs.writeFileSync(at('tree', name), noise(name, 9 * MIB + 5));
  for (let i = 0; i < 20; i++) fs.writeFileSync(at('tree', `small-${i}`), `small ${i}`);
  await createTest(at('repo'), { splitter: 'FIXED-1M' });
  await using repository = await openTest(at('repo'));
  root = (await backUp(repository, at('tree'))).rootEntry;
});
afterAll(() => {
  fs.rmSync(work, { recursive: true, force: true });
});

/** An entry for threads: a thread dies in the middle of such a task, once. */
function mortal(task: string): URL {
  const death = JSON.stringify({ task, once: at(`once-${task}`) });
  const modules = ['../../support/mortal-thread.ts', '../../../src/workers/thread.ts'];
  const imports = modules.map((path) => `import '${new URL(path, import.meta.url).href}';`);
  const text = `${imports.join('')} globalThis.death = ${death};`;
  return new URL(`data:text/javascript,${encodeURIComponent(text)}`);
}

const inPlace = (repository: Repository, target: string): Promise<InPlaceCounters> =>
  restoreTreeInPlace(repository, root, target, {
    logger: silentLogger,
    signal: new AbortController().signal,
    ignoreOpenFiles: true,
  });

it.each(['hashPartly', 'compareRanges', 'open', 'setAttributes'])(
  'a restore in place whose thread dies in "%s" fails with the reason, and the next one completes it',
  async (task) => {
    const target = at(`target-${task}`);
    {
      await using repository = await openTest(at('repo'));
      await restore(repository, root, target);
    }
    for (const name of ['a', 'b']) {
      const file = fs.openSync(join(target, name), 'r+');
      for (const place of [0, 4 * MIB - 1, 9 * MIB]) fs.writeSync(file, 'X', place);
      fs.fsyncSync(file);
      fs.closeSync(file);
      // Direct reads need files that are not in the page cache.
      const evict = [`if=${join(target, name)}`, 'iflag=nocache', 'count=0', 'status=none'];
      execFileSync('dd', evict);
    }
    fs.rmSync(join(target, 'small-3'));
    {
      const factory = createThreadPool(2, mortal(task));
      await using repository = await openTest(at('repo'), { factory });
      const run = inPlace(repository, target);
      const reason = await run.then(
        () => 'none',
        (error: unknown) => messageOf(error),
      );
      // Without direct reads, as on some file systems, no thread gets this task.
      const isAsked = task !== 'hashPartly' || fs.existsSync(at(`once-${task}`));
      expect(reason).toContain(isAsked ? 'a worker thread died: killed on purpose' : 'none');
    }
    await using repository = await openTest(at('repo'));
    await inPlace(repository, target);
    assertSameTree(at('tree'), target);
    expect(await inPlace(repository, target)).toMatchObject({ bytesWritten: 0, attributes: 0 });
  },
);
