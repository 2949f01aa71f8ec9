import type { Command } from 'commander';
import { addCreate } from './create.ts';
import { addDelete } from './delete.ts';
import { addDiff } from './diff.ts';
import { addKeepVerbs } from './retention-verbs.ts';
import { addList } from './list.ts';
import { addCat, addLs, addShow } from './show.ts';
import { addRestore } from '../restore/restore.ts';
import { addVerify } from './verify.ts';

export function addSnapshotCommands(program: Command): void {
  const group = program
    .command('snapshot')
    .description('back up, list, inspect, restore and delete snapshots');
  addCreate(group);
  addList(group);
  addShow(group);
  addLs(group);
  addCat(group);
  addVerify(group);
  addDiff(group);
  addKeepVerbs(group);
  addDelete(group);
  addRestore(group);
}
