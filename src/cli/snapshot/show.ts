import type { Command } from 'commander';
import { findSnapshotId, getSnapshot, resolveEntry } from '../../snapshot/index.ts';
import { fileEntryOf, KopiaFile } from '../browse/kopia-file.ts';
import { openContext } from '../context.ts';
import { snapshotDocument } from '../output/snapshot-document.ts';
import { entryDocument, listEntries, writeFileOf } from './entries.ts';
import { withOutputForm } from '../output/format-options.ts';
import { JSON_OPTION, verb, type VerbOptions } from '../program.ts';
import { type NameOptions, OBJECT_ARGUMENT, sourceOf, withNames } from './names.ts';
import { printJson } from '../output/terminal.ts';

export function addShow(group: Command): void {
  const example = 'longshore snapshot show 335744cff3425387e282aba1a0145b72 --repo /backup/repo';
  const command = verb(
    group,
    `show ${OBJECT_ARGUMENT}`,
    'show a snapshot, or one entry in it',
    example,
  ).option(...JSON_OPTION);
  withNames(command).action(async (name: string, options: VerbOptions<NameOptions>) => {
    await using context = await openContext(options);
    const { repository } = context;
    const source = sourceOf(repository, options);
    const id = await findSnapshotId(repository, name, source);
    printJson(
      id === undefined
        ? entryDocument(fileEntryOf(await resolveEntry(repository, name, source)))
        : snapshotDocument(await getSnapshot(repository, id)),
    );
  });
}

export function addLs(group: Command): void {
  const example =
    'longshore snapshot ls 335744cff3425387e282aba1a0145b72/etc --repo /backup/repo -r';
  const command = verb(group, `ls ${OBJECT_ARGUMENT}`, 'list a directory of a snapshot', example);
  withOutputForm(command, { isTable: true })
    .option('-r, --recursive', 'list everything below, too')
    .option(...JSON_OPTION);
  withNames(command).action(ls);
}

async function ls(
  id: string,
  options: VerbOptions<NameOptions & { recursive?: boolean }>,
): Promise<void> {
  await using context = await openContext(options);
  const { repository } = context;
  const root = await resolveEntry(repository, id, sourceOf(repository, options));
  await listEntries(new KopiaFile(repository, root), options, new AbortController().signal);
}

export function addCat(group: Command): void {
  const example =
    'longshore snapshot cat 335744cff3425387e282aba1a0145b72/etc/hosts --repo /backup/repo';
  const command = verb(group, `cat ${OBJECT_ARGUMENT}`, 'write one file to stdout', example);
  withNames(command).action(async (id: string, options: VerbOptions<NameOptions>) => {
    await using context = await openContext(options);
    const { repository } = context;
    const entry = await resolveEntry(repository, id, sourceOf(repository, options));
    await writeFileOf(repository, entry, { name: id, otherwise: 'use snapshot ls' });
  });
}
