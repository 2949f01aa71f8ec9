/**
 * `legacy-user.ts REPO SECONDS`: merges all index blobs of a repository of format 1, and drops
 * contents that were deleted before a time.
 */
import { SECOND_NS, silentLogger } from '../../src/base/index.ts';
import { SAFETY } from '../../src/repository/maintenance/safety.ts';
import { compactLegacyIndexes } from '../support/maintenance-tasks.ts';
import { openTest } from '../support/repositories.ts';

const [repo = '', seconds = ''] = process.argv.slice(2);
await using repository = await openTest(repo);
await compactLegacyIndexes(
  {
    repository,
    safety: SAFETY.full,
    startNs: repository.clock.nowNs(),
    signal: new AbortController().signal,
    logger: silentLogger,
  },
  { allIndexes: true, dropDeletedBeforeNs: BigInt(seconds) * SECOND_NS },
);
await repository.contents.refresh();
process.stdout.write(`merged ${repository.contents.contentCount}\n`);
