#compdef welldone
# zsh completion of welldone, printed by: welldone completion zsh

_welldone_models() {
    local -a models
    models=(${(f)"$(@models@)"})
    _alternative 'models:model:compadd -a models' 'files:file:_files'
}

_welldone() {
    local -a commands
    commands=(
@commands@
    )
    if ((CURRENT == 2)); then
        _describe command commands
        return
    fi
    local command=$words[2]
    shift words
    ((CURRENT--))
    case $command in
@options@
    esac
}

if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _welldone "$@"
else
    compdef _welldone welldone
fi
