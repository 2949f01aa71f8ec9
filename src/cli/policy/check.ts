import { type Command, InvalidArgumentError, Option } from 'commander';
import { withClusterOptions } from '../cluster-options.ts';
import { withOutputForm } from '../output/format-options.ts';
import type { PolicyCheckFlags } from './check-run.ts';
import { JSON_OPTION } from '../program.ts';

export function addPolicyCheckVerb(program: Command): void {
  const command = withClusterOptions(program.command('policy-check'))
    .description(
      'say for each volume of a cluster what a backup with these resource policies does with it, and which rule decides; nothing is changed',
    )
    .option(
      '-f, --filename <file>',
      'the policies, or the manifest of their ConfigMap; - for stdin (default: those of --backup)',
    )
    .option(
      '--global <file>',
      'policies for all backups, which are asked after the others (default: those that the Backup notes)',
    )
    .option('--backup <name>', 'take what the policies do not decide from this Backup')
    .option('--file-only', 'check the files, and ask no cluster')
    .option('--include-namespaces <names>', 'only these namespaces, comma-separated; * and ? work')
    .addOption(
      new Option(
        '--snapshot-volumes <yes>',
        'whether volumes that no rule is about are snapshotted, as in the Backup',
      ).argParser(booleanOf),
    )
    .option('--snapshot-move-data', 'snapshots are moved into the repository')
    .option(
      '--default-volumes-to-fs-backup',
      'volumes that no rule is about are backed up file by file, unless their pod says no',
    )
    .option('--features <names>', 'features of the server (default: those of its Deployment)')
    .option('--all', 'include volumes of pods that no backup ever takes, such as Secrets')
    .option(...JSON_OPTION);
  withOutputForm(command, { isTable: true })
    .addHelpText(
      'after',
      `
Exit codes: 0 if each volume can be decided, 1 if the policies are not valid or the cluster cannot be asked, 2 for wrong usage,
3 if a backup would be refused, or would report an error for some volume.

Examples:
  $ longshore policy-check -f docs/examples/volume-policies.yaml
  $ longshore policy-check -f policy.yaml --backup nightly -o json
  $ longshore policy-check -f policy.yaml --file-only`,
    )
    .action(async (flags: PolicyCheckFlags) => {
      const { checkPolicies } = await import('./check-run.ts');
      await checkPolicies(flags);
    });
}

function booleanOf(text: string): boolean {
  if (text === 'true' || text === 'false') return text === 'true';
  throw new InvalidArgumentError('It is true or false.');
}
