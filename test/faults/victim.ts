/**
 * A process that kills itself at a chosen storage event: `victim.ts MODE REPO TREE EVENT WHEN`.
 * EVENT counts puts and deletes from 0; `b1000` dies with the first event after 1000 bytes were
 * put.
 */
import { type Mode, runStages, stageOf } from './stages.ts';

const [mode = '', repo = '', tree = '', eventText = '', deathWhen = 'before'] =
  process.argv.slice(2);
const bytesToDeath = eventText.startsWith('b') ? Number(eventText.slice(1)) : Infinity;
const event = Number.isFinite(bytesToDeath) ? Infinity : Number(eventText);
let count = 0;

await runStages(mode as Mode, repo, tree, (operation, id, when, bytesUp) => {
  if (when !== deathWhen) return;
  if (count === event || bytesUp >= bytesToDeath) {
    process.stdout.write(`${stageOf(operation, id)}\n`);
    process.kill(process.pid, 'SIGKILL');
  }
  count++;
});
