import type { Command } from 'commander';
import { addCreate } from './snapshot-create.ts';
import { addDelete } from './snapshot-delete.ts';
import { addDiff } from './snapshot-diff.ts';
import { addKeepVerbs } from './snapshot-keep.ts';
import { addList } from './snapshot-list.ts';
import { addCat, addLs, addShow } from './snapshot-look.ts';
import { addRestore } from './snapshot-restore.ts';
import { addVerify } from './snapshot-verify.ts';

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
