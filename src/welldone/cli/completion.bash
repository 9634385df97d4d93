# bash completion of welldone, printed by: welldone completion bash

_welldone() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} words= values=
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        COMPREPLY=($(compgen -W "@commands@ --help --version" -- "$cur"))
        return
    fi
    if [[ $cur == = ]]; then  # bash splits --option=value at the =
        cur=
    elif [[ $prev == = ]]; then
        prev=${COMP_WORDS[COMP_CWORD-2]}
    fi
    case "${COMP_WORDS[1]} $prev" in
@values@
    esac
    case ${COMP_WORDS[1]} in
@options@
    esac
    if [[ $cur != -* ]]; then
        words=$values
    fi
    COMPREPLY=($(compgen -W "$words" -- "$cur"))
}
complete -o bashdefault -o default -F _welldone welldone
