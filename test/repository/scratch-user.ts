/**
 * Opens a repository and says what came of it: `scratch-user.ts REPO INDEX_MEMORY_BYTES`, with
 * TMPDIR as scratch space.
 */
import { readdirSync } from 'node:fs';
import { isCode } from '../../src/base/index.ts';
import { openTest } from '../support/repositories.ts';

const [repo = '', indexMemoryBytes = ''] = process.argv.slice(2);
const descriptors = (): number => readdirSync('/proc/self/fd').length;
const before = descriptors();
try {
  await using repository = await openTest(repo, { indexMemoryBytes: Number(indexMemoryBytes) });
  let count = 0;
  for (const entry of repository.contents.entries()) count += entry.packedLength === 100 ? 1 : 0;
  process.stdout.write(`opened ${count}\n`);
} catch (error) {
  if (!isCode(error, 'SCRATCH_FULL', 'DAMAGED_BLOB', 'BAD_INDEX')) throw error;
  process.stdout.write(`${error.code} ${error.message}\n`);
}
process.stdout.write(`descriptors left: ${descriptors() - before}\n`);
